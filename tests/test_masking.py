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
        ("redis://:s3cret@h", "redis://:***@h"),
        ("https://h/x?user=a&token=abc&n=1", "https://h/x?user=a&token=***&n=1"),
        ("s3://b/k?X-Amz-Signature=ab/c&X-Amz-Date=1", "s3://b/k?X-Amz-Signature=***&X-Amz-Date=1"),
        ("postgresql://h/db?password=abc", "postgresql://h/db?password=***"),
        ("two: a://u:one@h b://u:two@h", "two: a://u:***@h b://u:***@h"),
    ],
)
def test_passwords_in_addresses_are_masked(text: str, masked: str) -> None:
    assert mask(text) == masked


@pytest.mark.parametrize(
    "text",
    [
        "sqlite:////home/ada/mlflow.db",
        "http://127.0.0.1:5000/#/experiments/1?search=a",
        "ada@example.org wrote to ssh, round 3: KeyError: 'key=1'",
        "algorithm.lambda=7 tokens=4",
        "C:\\x://",
    ],
)
def test_what_holds_no_secret_stays_as_it_is(text: str) -> None:
    assert mask(text) == text


@pytest.mark.parametrize("text", ["a" * 10**6, "?" * 10**5, "a://" * 10**5, "?x" * 10**5])
def test_a_long_text_takes_a_time_in_proportion(text):
    assert mask(text) == text
