"""Evaluation: tests of models, and the metrics computed from them.

score.py        correct answers of one test
score_cache.py  reuse of scores whose inputs have not changed
testing.py      tests of one client's model, run where the client runs
metrics.py      the registry of measures, and their view of a round
measures.py     the measures
protocols.py    optional features of a method: a global model, cross-evaluations, fine-tuning,
analyses similarity.py   similarity of class representations and models accountant.py   privacy loss
"""
