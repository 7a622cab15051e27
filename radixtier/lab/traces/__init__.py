"""Traces: recorded loads, read as paths of one prefix tree."""
