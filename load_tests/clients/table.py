"""Writes the table of README.md from the lines that clients printed: python table.py RESULTS (RESULTS=FILE ./run.sh all)."""
import pathlib
import sys

BEGIN, END = "<!-- results -->", "<!-- end of results -->"
readme = pathlib.Path(__file__).with_name("README.md")
rows = {}
for line in pathlib.Path(sys.argv[1]).read_text().splitlines():
    result, _, rest = line.partition(" ")
    if result in ("ok", "FAIL") and " | " in rest:
        client, name = rest.strip().split(" | ")[:2]
        rows.setdefault(client, []).append((name, result))
lines = ["| client | tried | result |", "| --- | --- | --- |"]
for client, tried in rows.items():
    failed = [name for name, result in tried if result == "FAIL"]
    groups = {}
    for name, _ in tried:
        head, colon, tail = name.partition(": ")
        groups.setdefault(head if colon else "", []).append(tail if colon else name)
    said = "; ".join((f"**{head}**: " if head else "") + ", ".join(names) for head, names in groups.items())
    result = f"{len(tried) - len(failed)} of {len(tried)}" + (f"; fails: {', '.join(failed)}" if failed else "")
    lines.append(f"| {client} | {said} | {result} |")
text = readme.read_text()
before, after = text.split(BEGIN)[0], text.split(END)[1]
readme.write_text(before + BEGIN + "\n" + "\n".join(lines) + "\n" + END + after)
