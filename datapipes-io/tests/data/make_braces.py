"""Makes braces.jsonl: patterns, and what the package braceexpand 0.1.7 makes of them (null for an error)."""

import itertools
import json
import random
from pathlib import Path

from braceexpand import UnbalancedBracesError, braceexpand

fixed = [
    "s3-{000..099}.tar", "{1..3}", "{3..1}", "{07..10}", "{7..010}", "{-2..2}", "{-02..2}", "{-0..2}", "{0..-0}", "{00..0}",
    "{0..10..3}", "{10..0..3}", "{0..10..-3}", "{0..10..0}", "{1..1}", "{1..1..5}", "{a..e}", "{e..a}", "{a..g..2}",
    "{g..a..2}", "{A..C}", "{C..A}", "{Y..b}", "{b..Y}", "{a..a}", "{A..A}", "{A..z..10}", "{a,b}", "{a,}", "{,a}", "{,}",
    "{}", "{a}", "{{a}}", "{{a,b}}", "{{1..2}}", "a{b{c,d},e}f", "{a,b}{c,d}{e,f}", "python{2.{5..7},3.{2,3}}",
    "{1..2}{a..b}", "{1...3}", "{1..}", "{..3}", "{1..a}", "{a..1}", "{1..3..}", "{1..3..a}", "{1..3..2..1}", "{aa..b}",
    "{+1..3}", "{1.0..2.0}", "a,b", "{a,b},c", "\\{a,b\\}", "\\{1..2}", "{a\\,b}", "{a\\,b,c}", "{a,b\\}", "a\\\\{b,c}",
    "a\\", "\\a", "{a,b", "a,b}", "{{a,b}", "{a,b}}", "{1{2,3}", "", "ü{é,1}x", "{ü..z}", "pipe:aws s3 cp s3://b/{0..2}.tar -",
    "${NAME}/{0..1}", "{a,{b,{c,{d,e}}}}", "{01..3}{3..01}", "{-9..9..9}", "{--1..2}", "{1..--2}", "{000..5..2}",
]
rng = random.Random(11)
made = set()
while len(made) < 500:
    made.add("".join(rng.choice("{{}},,..ab019-\\") for _ in range(rng.randint(2, 12))))
pieces = ["{", "}", ",", "..", "a", "c", "1", "3", "05", "{1..3}", "{a,b}", "-2", "\\"]
while len(made) < 1000:
    made.add("".join(rng.choice(pieces) for _ in range(rng.randint(3, 10))))

lines = []
for pattern in itertools.chain(fixed, sorted(made)):
    depth, at, stray = 0, 0, False
    while at < len(pattern):
        if pattern[at] == "\\":
            at += 2
            continue
        depth += {"{": 1, "}": -1}.get(pattern[at], 0)
        stray = stray or depth < 0
        at += 1
    if stray and depth == 0:
        continue  # Here the library is stricter, and says so.
    try:
        names = list(itertools.islice(braceexpand(pattern), 2001))
    except UnbalancedBracesError:
        names = None
    if names is None or len(names) <= 2000:
        lines.append(json.dumps([pattern, names], ensure_ascii=False))
out = Path(__file__).with_name("braces.jsonl")
out.write_text("\n".join(lines) + "\n", encoding="utf-8")
