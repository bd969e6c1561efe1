"""The quick look at a record misses nothing that a thorough one would cut (J8, I36)."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from trouper import codec
from trouper.redaction import Redactor

#: Whole secrets, their beginnings and ends, and what is easily taken for one.
FRAGMENTS = (
    *("AIza", "sk-", "pk_live_", "rk_test_", "ghp_", "ghs_", "github_pat_", "glpat-", "xoxb-", "xapp-", "AKIA", "ASIA"),
    *("hooks.slack.com/services/", "aws_secret_access_key = ", "secretAccessKey: ", "SECRET_ACCESS_KEY=", "ya29."),
    *("GOCSPX-", "hf_", "npm_", "gsk_", "eyJhbGciOiJI", ".eyJzdWIi.", "Bearer ", "bearer\t", "Authorization: Basic "),
    *("api-key: ", "api_key=", "Api-Key=", "API-Key: ", "API_KEY=", "apikey=", "apiKey: ", "https://user:", "@host"),
    *("-----BEGIN RSA PRIVATE KEY-----", "-----END RSA PRIVATE KEY-----", "hunter2-hunter2", "correct horse battery"),
    *("a1" * 22, "A1" * 8, "0123456789" * 4, "é", "\n", "\\n", " ", "-", "_", "/", '"', "word"),
)
texts = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=3), max_size=6).map("".join)
values = st.recursive(
    texts | st.integers(0, 99) | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=6,
)
known = st.lists(st.sampled_from(["hunter2-hunter2", "correct horse battery", "0123456789" * 4, "aeiouaeiou"]))


@given(known, values)
@example([], "Bearer " + "a1" * 22)
@example(["aeiouaeiou"], {"aeiouaeiou": ["x"]})
def test_what_the_quick_look_lets_pass_has_nothing_to_cut(secrets: list[str], value: object) -> None:
    """J8, I36: a record is handed back as it is only if reading it word by word would change nothing."""
    redact = Redactor(secrets)
    data = codec.dumps(value)
    clean = redact.value(codec.loads(data))
    assert redact(data) == (data if clean == value else codec.dumps(clean))
