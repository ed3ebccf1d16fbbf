"""Four tiny policies, trained for a second each so that they end their answers, as Hugging Face folders."""

from __future__ import annotations

from random import Random

import pytest
import torch

from harness.engines.embedded.families import FAMILIES, build_model, build_tokenizer
from harness.experience.answers import Prompt
from harness.tasks.micro import LEVELS, SKILLS

# Several OpenMP threads on a busy machine spin against each other: minutes instead of seconds.
torch.set_num_threads(1)


def draw(count, seed):
    rng, skills = Random(seed), list(SKILLS.values())
    return [skills[i % len(skills)].draw(rng, rng.choice(LEVELS), held_out=False) for i in range(count)]


@pytest.fixture(scope="session")
def prompts():
    return tuple(Prompt(f"p{i}", p.prompt, "0") for i, p in enumerate(draw(200, seed=5)))


@pytest.fixture(scope="session", params=FAMILIES)
def folder(request, tmp_path_factory):
    tokenizer = build_tokenizer(request.param)
    model = build_model(request.param, seed=0, tokenizer=tokenizer)
    optimiser = torch.optim.AdamW(model.parameters(), lr=4e-3)
    texts = [p.prompt + (p.direct if i % 2 else p.chain_of_thought) for i, p in enumerate(draw(50 * 16, seed=1))]
    for step in range(50):
        ids = [[*tokenizer.encode(t), tokenizer.eos_token_id] for t in texts[step * 16 : (step + 1) * 16]]
        width = max(map(len, ids))
        labels = torch.tensor([row + [-100] * (width - len(row)) for row in ids])
        loss = model(input_ids=labels.clamp(min=0), labels=labels).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    path = tmp_path_factory.mktemp("policies") / request.param
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path
