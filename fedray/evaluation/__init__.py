"""What is measured.

score.py       right answers of one test
testing.py     tests of one client's model, run where the client runs
metrics.py     the registry of measures, and what they see of a round
measures.py    the measures
protocols.py   what a method may offer: a global model, cross-evaluations, fine-tuning, an analysis
similarity.py  how alike class representations and models are
"""
