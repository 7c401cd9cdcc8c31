"""Compute metrics and curves from embeddings or predictions, with numpy only, without networks and ranks.

    verify_pairs(embeddings, pairs, same)         are two images, or templates, of the same class?
    identify(embeddings, gallery, probe, ids)     who of the gallery is it, if anybody?
    classify(label, predicted)       which of the trained classes is it?

Each returns a result with `kind`, `metric` (the key in `row()` that chooses the best checkpoint), `headline`,
`row()` for metrics.jsonl, `numbers()` for results.json, and `results()` for people.
"""

from plsc.evaluation.classification import classify
from plsc.evaluation.identification import identify
from plsc.evaluation.templates import template_features
from plsc.evaluation.verification import verify, verify_pairs

__all__ = ["classify", "identify", "template_features", "verify", "verify_pairs"]
