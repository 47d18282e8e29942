"""The text that explains an exported folder to somebody who has only that folder."""

README = """\
# {experiment}

{question}

Exported from dflash-lab; commit {commits}. Begin with `summary.md`. Nothing here needs a store, or
the machine on which it was made.

| what | where |
|---|---|
| the summary, its table and its figures | `summary.md`, `summary.csv`, `figures/` |
| one row per run, prompt, verification step and slot | `runs.parquet`, `prompts.parquet`, \
`steps.parquet`, `survival.parquet` |
| the experiment as written and as resolved | `experiment.yaml`, `config.yaml` |
| the noise floor that verdicts were held against, where one was measured | `noise.json` |
| what the data was and what was dropped | `data_card.json` |
| prompts and the target's answers, as token ids | `rollouts/<entry>/rollouts.parquet` |
| drafters in the public checkpoints' layout | {checkpoints} |
| store entries of every run, with configuration, inputs and code; uncommitted changes | \
`provenance/` |
| SHA-256 of every file | `MANIFEST` |

## Runs

| run | status | drafter | answers to train on | answers to measure on |
|---|---|---|---|---|
{runs}

## Reading it

In this folder, with dflash-lab installed for everything but the first line:

```bash
sha256sum --check --quiet MANIFEST
dflash store verify .
```

```python
from pathlib import Path

from analysis.load import load
from dflash.model import DFlashDraftModel

result = load(Path.cwd().name, "..")  # .runs .prompts .steps .survival .config
drafter = DFlashDraftModel.from_pretrained("checkpoints/RUN")
```

The target's features are not here: they follow from the answers and the target's weights.
"""
