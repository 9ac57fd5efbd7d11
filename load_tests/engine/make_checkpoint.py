#!/usr/bin/env python3
"""Writes a randomly initialised Qwen3-VL of about 100 million parameters, f32, as a checkpoint and a card of paravt.

    python make_checkpoint.py DIR [--seed 0]

It says nothing sensible; it is there because the bundled model is so small that an engine's own overhead is all that one
sees. Tokenizer and chat template are those of `model_cards/paravt-tiny`, so the same prompts have the same tokens.
The same seed gives the same bytes. DIR loads in transformers, in vLLM, and in paravt (`--card DIR`).
"""

import argparse
import json
import math
import shutil
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

TINY = Path(__file__).resolve().parents[2] / "model_cards/paravt-tiny"
COPIED = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")
# The bundled model's budget is 64x64, ParaVT-8B's is 224x224. Between them (128x128) 32 episodes take minutes, not an hour.
MIN_PIXELS, MAX_PIXELS = 1024, 16_384
# The tokenizer's special tokens and the empty rows behind them; none of them may be generated.
FIRST_SPECIAL = 1582

TEXT = {
    "model_type": "qwen3_vl_text",
    "vocab_size": 2048,
    "hidden_size": 768,
    "intermediate_size": 2048,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "hidden_act": "silu",
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-06,
    "rope_theta": 10000.0,
    "rope_scaling": {"rope_type": "default", "mrope_section": [12, 10, 10], "mrope_interleaved": True},
    "attention_bias": False,
    "tie_word_embeddings": False,
    "eos_token_id": 1584,
    "bos_token_id": 1582,
}
VISION = {
    "model_type": "qwen3_vl",
    "depth": 6,
    "hidden_size": 384,
    "intermediate_size": 1536,
    "num_heads": 6,
    "out_hidden_size": 768,
    "patch_size": 16,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "num_position_embeddings": 2304,
    "deepstack_visual_indexes": [0, 2, 4],
    "in_channels": 3,
    "in_chans": 3,
    "hidden_act": "gelu_pytorch_tanh",
}


def shapes():
    """Every tensor of the checkpoint, with its shape."""
    hidden, inner, head = TEXT["hidden_size"], TEXT["intermediate_size"], TEXT["head_dim"]
    queries, keys = TEXT["num_attention_heads"] * head, TEXT["num_key_value_heads"] * head
    yield "lm_head.weight", (TEXT["vocab_size"], hidden)
    text = "model.language_model"
    yield f"{text}.embed_tokens.weight", (TEXT["vocab_size"], hidden)
    yield f"{text}.norm.weight", (hidden,)
    for layer in range(TEXT["num_hidden_layers"]):
        at = f"{text}.layers.{layer}"
        yield f"{at}.input_layernorm.weight", (hidden,)
        yield f"{at}.post_attention_layernorm.weight", (hidden,)
        yield f"{at}.mlp.gate_proj.weight", (inner, hidden)
        yield f"{at}.mlp.up_proj.weight", (inner, hidden)
        yield f"{at}.mlp.down_proj.weight", (hidden, inner)
        yield f"{at}.self_attn.q_proj.weight", (queries, hidden)
        yield f"{at}.self_attn.k_proj.weight", (keys, hidden)
        yield f"{at}.self_attn.v_proj.weight", (keys, hidden)
        yield f"{at}.self_attn.o_proj.weight", (hidden, queries)
        yield f"{at}.self_attn.q_norm.weight", (head,)
        yield f"{at}.self_attn.k_norm.weight", (head,)

    width, inner = VISION["hidden_size"], VISION["intermediate_size"]
    merged = width * VISION["spatial_merge_size"] ** 2
    patch = (VISION["in_channels"], VISION["temporal_patch_size"], VISION["patch_size"], VISION["patch_size"])
    yield "model.visual.patch_embed.proj.weight", (width, *patch)
    yield "model.visual.patch_embed.proj.bias", (width,)
    yield "model.visual.pos_embed.weight", (VISION["num_position_embeddings"], width)
    for block in range(VISION["depth"]):
        at = f"model.visual.blocks.{block}"
        for name, out, into in (("attn.qkv", 3 * width, width), ("attn.proj", width, width),
                                ("mlp.linear_fc1", inner, width), ("mlp.linear_fc2", width, inner)):
            yield f"{at}.{name}.weight", (out, into)
            yield f"{at}.{name}.bias", (out,)
        for name in ("norm1", "norm2"):
            yield f"{at}.{name}.weight", (width,)
            yield f"{at}.{name}.bias", (width,)
    # The deepstack mergers norm what they have put together, the last one norms before.
    mergers = [("model.visual.merger", width)]
    mergers += [(f"model.visual.deepstack_merger_list.{i}", merged) for i in range(len(VISION["deepstack_visual_indexes"]))]
    for at, normed in mergers:
        yield f"{at}.norm.weight", (normed,)
        yield f"{at}.norm.bias", (normed,)
        yield f"{at}.linear_fc1.weight", (merged, merged)
        yield f"{at}.linear_fc1.bias", (merged,)
        yield f"{at}.linear_fc2.weight", (VISION["out_hidden_size"], merged)
        yield f"{at}.linear_fc2.bias", (VISION["out_hidden_size"],)


def draw(random, name, shape):
    """A tensor's values: layers keep the size of what goes through them.

    Small embeddings and sharp attention, because with large ones and a flat one each token depends on the last alone,
    and the text soon repeats itself, which would favour an engine that guesses ahead from what was said before.
    """
    if name.endswith("q_norm.weight"):
        return np.full(shape, 2, np.float32)
    if "norm" in name:
        return np.zeros(shape, np.float32) if name.endswith("bias") else np.ones(shape, np.float32)
    if name.endswith("bias"):
        return (0.02 * random.standard_normal(shape)).astype(np.float32)
    if "embed" in name and "patch" not in name:
        scale = 0.025
    else:
        scale = 1 / math.sqrt(math.prod(shape[1:]))
    values = (scale * random.standard_normal(shape)).astype(np.float32)
    if name == "lm_head.weight":
        # Their logits are exactly 0, the greatest of 1,582 others is far above: greedy text never ends by itself, so
        # every engine generates as many tokens as it is asked for, also where it can't be told to go on.
        values[FIRST_SPECIAL:] = 0
    return values


def card(name):
    """paravt-tiny's card with this model's name and pixels."""
    lines = []
    for line in (TINY / "card.toml").read_text().splitlines():
        key = line.split(" = ")[0]
        if line.startswith("# The embedded default"):
            line = "# Random weights under paravt-tiny's prompts, for measuring engines."
        elif key == "name":
            line = f'name = "{name}"'
        elif key == "description":
            line = 'description = "A randomly initialised Qwen3-VL for measuring engines; it says nothing sensible"'
        elif key in ("min_pixels", "max_pixels"):
            line = f"{key} = {MIN_PIXELS if key == 'min_pixels' else MAX_PIXELS}"
        lines.append(line)
    return "\n".join(lines) + "\n"


def write_json(path, value):
    path.write_text(json.dumps(value, indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", metavar="DIR", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    folder = options.directory
    folder.mkdir(parents=True, exist_ok=True)

    random = np.random.default_rng(options.seed)
    tensors = {name: draw(random, name, shape) for name, shape in shapes()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})

    tiny = json.loads((TINY / "config.json").read_text())
    write_json(folder / "config.json", {**tiny, "text_config": TEXT, "vision_config": VISION})
    for name in COPIED:
        shutil.copyfile(TINY / name, folder / name)
    images = json.loads((TINY / "preprocessor_config.json").read_text())
    images |= {"min_pixels": MIN_PIXELS, "max_pixels": MAX_PIXELS,
               "size": {"shortest_edge": MIN_PIXELS, "longest_edge": MAX_PIXELS}}
    write_json(folder / "preprocessor_config.json", images)
    # A video's budget is for all its frames together.
    video = {key: value for key, value in images.items() if key not in ("image_processor_type", "min_pixels", "max_pixels")}
    video |= {"video_processor_type": "Qwen3VLVideoProcessor",
              "size": {"shortest_edge": MIN_PIXELS, "longest_edge": 64 * MAX_PIXELS}}
    write_json(folder / "video_preprocessor_config.json", video)
    (folder / "card.toml").write_text(card(folder.resolve().name))

    parts = {"vision": 0, "language_model": 0, "lm_head": 0}
    for name, tensor in tensors.items():
        parts["vision" if ".visual." in name else "lm_head" if name.startswith("lm_head") else "language_model"] += tensor.size
    print(f"{folder}: {sum(parts.values()):,} parameters ({', '.join(f'{part} {count:,}' for part, count in parts.items())})")


if __name__ == "__main__":
    main()
