"""Secrets out of text."""

from __future__ import annotations

import pytest

from fedray.base.masking import mask


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("at http://ada:s3cret@host:5000/x failed", "at http://ada:***@host:5000/x failed"),
        ("('https://ada:p@ss:word@host')", "('https://ada:***@host')"),
        ("https://ghp_token@host/x", "https://***@host/x"),
        ("postgresql+psycopg2://u:a/b?c#d@h:5432/db", "postgresql+psycopg2://u:***@h:5432/db"),
        ("https://h/x?user=a&token=abc&n=1", "https://h/x?user=a&token=***&n=1"),
        ("s3://b/k?X-Amz-Signature=ab/c&X-Amz-Date=1", "s3://b/k?X-Amz-Signature=***&X-Amz-Date=1"),
        ("postgresql://h/db?password=abc", "postgresql://h/db?password=***"),
        ("two: a://u:one@h b://u:two@h", "two: a://u:***@h b://u:***@h"),
        ("sqlite:////home/ada/mlflow.db", None),
        ("http://127.0.0.1:5000/#/experiments/1?search=a", None),
        ("ada@example.org wrote to ssh, round 3: KeyError: 'key=1'", None),
        ("algorithm.lambda=7 tokens=4", None),
        ("a://" * 10**5, None),  # in a time in proportion to its length
        ("?x" * 10**5, None),
    ],
)
def test_passwords_in_addresses_are_masked_and_nothing_else(text, masked):
    assert mask(text) == (text if masked is None else masked)
