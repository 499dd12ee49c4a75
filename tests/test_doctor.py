"""The environment check says what is there, and what to do about what is not."""

import re

from minihaares import doctor
from minihaares.doctor import Finding


def test_the_report_covers_this_computer(monkeypatch):
    monkeypatch.setattr(doctor, "read_runs", lambda store: [1])
    monkeypatch.setattr(doctor, "FREE_GIB", 0.0)
    lines, fine = doctor.report()
    text = "\n".join(lines)
    assert fine, text
    for name in (
        "Python",
        "system",
        "cores",
        "device",
        "torch",
        "sympy",
        "corpus stories",
        "corpus tinystories",
        "recorded runs",
    ):
        assert re.search(rf"^{name}\s", text, re.M), name
    assert len({line.split("  ")[0] for line in lines}) == len(lines)


def test_what_is_wrong_comes_with_advice(monkeypatch, capsys):
    monkeypatch.setattr(
        doctor, "requires", lambda name: ["torch>=99", "no-such-package>=2", "pytest-zzz; extra == 'test'"]
    )
    by_name = {f.name: f for f in doctor.packages()}
    assert by_name["torch"].advice == "pip install 'torch>=99'"
    assert by_name["no-such-package"] == Finding("no-such-package", "missing", "pip install 'no-such-package>=2'")
    assert "pytest-zzz" not in by_name
    monkeypatch.setattr(doctor, "FREE_GIB", 1e9)
    assert doctor.Doctor()() == 1
    assert "to put right" in capsys.readouterr().out
