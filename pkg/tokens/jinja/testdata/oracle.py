"""Renders templates with Python's jinja2 as transformers sets it up.

One JSON object a line in: {"template": …, "vars": {…}}; one line out: {"text": …}, or
{"raises": true}. The tests in Go compare what they render with it.
"""

import json
import sys

from transformers.utils.chat_template_utils import _compile_jinja_template


def answer(q):
    try:
        return {"text": _compile_jinja_template(q["template"]).render(**q["vars"])}
    except Exception as e:  # whatever Python raises, the other side has to raise too
        return {"raises": True, "why": type(e).__name__}


for line in sys.stdin:
    print(json.dumps(answer(json.loads(line))), flush=True)
