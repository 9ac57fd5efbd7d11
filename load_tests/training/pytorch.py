"""One training step of the bundled model in PyTorch and in paravt, on the same batch: tokens a second, and whether the loss agrees.

    paravt train bench --rows 16 --dump batch.safetensors     # what this script runs for its own half
    python pytorch.py --paravt PATH [--rows 16] [--rounds 5]

Needs torch and transformers (5.24 or later). Both compute loss on the same targets, gradients of all weights and an AdamW step of
rate 0. PyTorch gets the rows padded to the longest, logits for the targets alone, and both cores. They take turns; the median
counts.
"""

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import Qwen3VLForConditionalGeneration

MODEL = Path(__file__).resolve().parents[2] / "model_cards" / "paravt-tiny"


class Step:
    def __init__(self, file, rows, attention):
        data = load_file(file)
        self.model = Qwen3VLForConditionalGeneration.from_pretrained(
            MODEL, dtype=torch.float32, attn_implementation=attention
        ).train()
        length = max(len(data[f"ids.{row}"]) for row in range(rows))
        self.ids = torch.zeros(rows, length, dtype=torch.long)
        self.mask = torch.zeros(rows, length, dtype=torch.long)
        self.positions = torch.zeros(3, rows, length, dtype=torch.long)
        where, self.targets = [], []
        for row in range(rows):
            ids, targets = data[f"ids.{row}"], data[f"targets.{row}"]
            self.ids[row, : len(ids)], self.mask[row, : len(ids)] = ids, 1
            self.positions[:, row, : len(ids)] = data[f"positions.{row}"]
            where.append(row * length + targets - 1)
            self.targets.append(ids[targets])
        self.where, self.targets = torch.cat(where), torch.cat(self.targets)
        self.pixels = torch.cat([data[f"pixels.{row}"] for row in range(rows)])
        self.grids = torch.cat([data[f"grids.{row}"] for row in range(rows)])
        self.kinds = (self.ids == self.model.config.image_token_id).long()
        self.tokens = int(self.mask.sum())
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.0, betas=(0.9, 0.95))

    def __call__(self):
        self.optimizer.zero_grad()
        hidden = self.model.model(
            input_ids=self.ids, attention_mask=self.mask, position_ids=self.positions, pixel_values=self.pixels,
            image_grid_thw=self.grids, mm_token_type_ids=self.kinds, use_cache=False,
        ).last_hidden_state
        logits = self.model.lm_head(hidden.flatten(0, 1)[self.where])
        loss = torch.nn.functional.cross_entropy(logits, self.targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return float(loss.detach())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--paravt", required=True)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--attention", default="sdpa", choices=["sdpa", "eager"])
    arguments = parser.parse_args()
    torch.set_num_threads(os.cpu_count())
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "batch.safetensors"
        bench = [arguments.paravt, "train", "bench", "--rows", str(arguments.rows), "--steps", "1"]
        subprocess.run([*bench, "--dump", str(file)], check=True, stdout=subprocess.DEVNULL)
        step = Step(file, arguments.rows, arguments.attention)
        step()
        rates = {"pytorch": [], "apart": [], "shared": []}
        for _ in range(arguments.rounds):
            began = time.monotonic()
            loss = step()
            rates["pytorch"].append(step.tokens / (time.monotonic() - began))
            for line in subprocess.run(bench, check=True, capture_output=True, text=True).stdout.splitlines():
                report = json.loads(line)
                rates[report["rows"]].append(report["tokens_per_s"])
                if abs(report["loss"] - loss) > 1e-4 * loss:
                    raise SystemExit(f"losses differ: paravt {report['loss']}, PyTorch {loss}")
    print(f"{step.tokens} tokens in {arguments.rows} rows, loss {loss:.6f} in both (within 1e-4)")
    print("| | tokens/s, median | least | most | of PyTorch's |\n| --- | --- | --- | --- | --- |")
    base = statistics.median(rates["pytorch"])
    names = {
        "pytorch": f"PyTorch {torch.__version__}, {arguments.attention}",
        "apart": "paravt, rows apart",
        "shared": "paravt, what rows have in common once",
    }
    for key, name in names.items():
        found = rates[key]
        median = statistics.median(found)
        print(f"| {name} | {median:,.0f} | {min(found):,.0f} | {max(found):,.0f} | {median / base:.2f} |")


if __name__ == "__main__":
    main()
