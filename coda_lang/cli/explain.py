"""`coda-run explain [E0123]`: what an error code means. Of a file: how a call of it runs, which `schedule` shows."""

from __future__ import annotations

import argparse
import re
import textwrap

from coda_lang.cli.arguments import UsageError
from coda_lang.cli.terminal import paint
from coda_lang.codes import CODES
from coda_lang.errors import did_you_mean


def run(options: argparse.Namespace) -> int:
    if options.subject is not None and not re.fullmatch(r"[A-Za-z][0-9]{1,6}", options.subject):
        from coda_lang.cli import schedule

        return schedule.run(options)
    if (
        options.kernel is not None
        or options.dim
        or options.dtype
        or options.inputs
        or options.outputs
        or options.config
    ):
        raise UsageError(
            "an error code has no call to describe", "name a file: coda-run explain FILE [KERNEL] --dim M=512"
        )
    if options.subject is None:
        for name, code in sorted(CODES.items()):
            print(f"{paint(name, 'bold')}  {code.title}")
        return 0
    name = f"{options.subject[0].upper()}{options.subject[1:]:0>4}"  # e305 is E0305
    if name not in CODES:
        help = did_you_mean(name, CODES) or "`coda-run explain` lists all"
        raise UsageError(f"there is no error code {options.subject}", help)
    code = CODES[name]
    print(f"{paint(name, 'bold')}: {code.title}\n")
    print(_paragraphs(code.text))
    for title, program in (("wrong", code.wrong), ("right", code.right)):
        if program:
            print(f"\n{paint(title, 'red' if title == 'wrong' else 'green')}:\n")
            print(textwrap.indent(textwrap.dedent(program).strip("\n"), "    "))
    return 0


def _paragraphs(text: str) -> str:
    parts = textwrap.dedent(text).strip().split("\n\n")
    return "\n\n".join(textwrap.fill(part, 100, break_long_words=False, break_on_hyphens=False) for part in parts)
