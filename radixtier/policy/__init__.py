"""Decisions, one small file each; they know neither SGLang nor torch and are what a simulator replays."""
