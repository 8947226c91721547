"""Evaluation: tests of models, and the metrics computed from them.

splits.py      the images on which models are tested
testing.py     tests of one model, run where its clients run
answers.py     counts of right answers, images and predictions by class, as arrays
metrics.py     the registry of measures, and their view of a round
measures.py    the measures
protocols.py   optional features of a method, such as a global model or cross-evaluations
similarity.py  similarity of class representations and models
accountant.py  privacy loss
"""
