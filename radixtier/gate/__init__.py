"""The gate: four acceptance runs against a server with the tier, a verdict for each, and a report.

G1 `acceptance`, G2 `baseline`, G3 `recovery`, G4 `soak`; `stand` is the server under test, `result` what a gate found,
`report` what is made of it. Imports neither SGLang nor torch.
"""
