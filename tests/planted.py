"""Whether the tests would see a fault: ``python -m tests.planted [NAME ...]`` plants small ones, one after the other.

Each is a line of the product that is wrong in a way that no type checker sees. It is planted in a copy of the tree, and
the test files that should see it run with ``-x`` until one fails, for a minute at most. Two faults run at a time. The
exit code is 1 unless all were seen. A fault whose old text is gone was not placed anew by the change that removed it:
it counts as unseen. To be run by hand: CI does not.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
SECONDS = 60
COPIED = (
    "client_app",
    "common",
    "conf",
    "docs",
    "examples",
    "nectar",
    "server_app",
    "strategies",
    "synth",
    "tests",
)
FILES = (
    "pyproject.toml",
    "README.md",
    "docker-compose.yml",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "nectarw",
)


@dataclass(frozen=True)
class Fault:
    """One fault: what it is called, where it is planted, and the test files that should see it."""

    name: str
    path: str
    old: str
    new: str
    tests: str


FAULTS = (
    # ---- what a method computes ------------------------------------------------------------------
    Fault(
        "the mean divides by the number of replies",
        "strategies/averaging.py",
        "        self.total += share\n        self._waiting",
        "        self.total += 1\n        self._waiting",
        "strategies/test_strategies.py",
    ),
    Fault(
        "an even median takes the upper of the two",
        "strategies/averaging.py",
        "(ordered[(n - 1) // 2].double() + ordered[n // 2].double()) / 2",
        "ordered[n // 2].double()",
        "strategies/test_robust.py",
    ),
    Fault(
        "Krum counts the reply's distance to itself",
        "strategies/averaging.py",
        "distances.sort(1).values[:, 1 : n - byzantine - 1]",
        "distances.sort(1).values[:, 0 : n - byzantine - 2]",
        "strategies/test_robust.py",
    ),
    Fault(
        "Yogi's sign is turned round",
        "strategies/averaging.py",
        "torch.sign(old - new)",
        "torch.sign(new - old)",
        "strategies/test_server_optimizer.py",
    ),
    Fault(
        "SCAFFOLD corrects the wrong way",
        "common/learning/training.py",
        "self._drifts, alpha=-self._lr * self._amount)",
        "self._drifts, alpha=self._lr * self._amount)",
        "strategies/test_scaffold.py",
    ),
    Fault(
        "SCAFFOLD's c moves as if all sites had replied",
        "strategies/scaffold.py",
        "self._keep({name: c + part * change[name]",
        "self._keep({name: c + change[name]",
        "strategies/test_scaffold.py",
    ),
    Fault(
        "FedDyn's h grows where it should shrink",
        "strategies/feddyn.py",
        "h - part * (ends[n] - weights.tensors[n])",
        "h + part * (ends[n] - weights.tensors[n])",
        "strategies/test_feddyn.py",
    ),
    Fault(
        "FedNova forgets tau_eff",
        "strategies/fednova.py",
        "(t + effective * mean[n]).to(t.dtype)",
        "(t + mean[n]).to(t.dtype)",
        "strategies/test_fednova.py",
    ),
    Fault(
        "MOON keeps its oldest models instead of the newest",
        "client_app/moon.py",
        "enumerate([ended, *kept][: settings.pool])",
        "enumerate([*kept, ended][: settings.pool])",
        "strategies/test_moon.py",
    ),
    Fault(
        "FedMix forgets to shrink the input",
        "client_app/fedmix.py",
        "near = ((1 - share) * x).requires_grad_()",
        "near = x.clone().requires_grad_()",
        "strategies/test_fedmix.py",
    ),
    Fault(
        "the ELBO adds no divergence",
        "synth/beta_vae.py",
        "return pixels + beta * kl_to_prior(mu, log_variance)",
        "return pixels + 0 * kl_to_prior(mu, log_variance)",
        "synth/test_beta_vae.py",
    ),
    Fault(
        "latent means are not divided by the class's size",
        "synth/latent_sharing.py",
        "return (member @ codes) / member.sum(1, keepdim=True)",
        "return member @ codes",
        "synth/test_latent_sharing.py",
    ),
    Fault(
        "ridge's penalty is not added",
        "synth/ridge_regression.py",
        "self.squares + penalty * eye, self.products",
        "self.squares + 0 * eye, self.products",
        "synth/test_ridge_regression.py",
    ),
    Fault(
        "a matched image gets another image's label",
        "synth/distribution_matching.py",
        "MatchedImages(images.detach(), start_labels[by_class], history)",
        "MatchedImages(images.detach(), start_labels, history)",
        "synth/test_matching_distil.py",
    ),
    Fault(
        "dissimilarity keeps the first chunk's mean",
        "synth/dissimilarity.py",
        "mean += (own - mean) * (len(at) / n)",
        "mean += (own - mean) * (1 if before == 0 else 0)",
        "synth/test_dissimilarity.py",
    ),
    # ---- what travels ----------------------------------------------------------------------------
    Fault(
        "top-k keeps the smallest numbers",
        "common/wire/sparse.py",
        "indices = largest(update, spec.k)",
        "indices = largest(1 / update, spec.k)",
        "contract/test_wire.py common/test_sparse_wire.py strategies/test_topk.py",
    ),
    Fault(
        "a masked update is not scaled by its rate",
        "common/wire/sparse.py",
        "return places, self.values.double() * spec.rate",
        "return places, self.values.double()",
        "common/test_sparse_wire.py strategies/test_masking.py",
    ),
    Fault(
        "int8 forgets what earlier updates fell short by",
        "common/wire/int8_update.py",
        "change += owed[name].double()",
        "change += 0 * owed[name].double()",
        "common/test_int8_wire.py",
    ),
    Fault(
        "a level of -128 is taken",
        "common/wire/int8_update.py",
        "TensorSpec(shape, -LEVELS, LEVELS, torch.int8)",
        "TensorSpec(shape, -LEVELS - 1, LEVELS, torch.int8)",
        "common/test_int8_wire.py",
    ),
    Fault(
        "a tensor may exceed its bound",
        "common/wire/form.py",
        "if low < least or high > most:",
        "if low < least:",
        "contract/test_wire.py common/test_tensors_wire.py",
    ),
    Fault(
        "places that do not ascend are taken",
        "synth/sparse_updates.py",
        "if bool((places.diff() <= 0).any()):",
        "if bool((places.diff() < 0).all()):",
        "contract/test_wire.py common/test_sparse_wire.py strategies/test_topk.py",
    ),
    Fault(
        "a reply of another node is taken",
        "strategies/exchange/exchange.py",
        "if reply.has_content() and reply.metadata.src_node_id != about.dst_node_id:",
        "if reply.has_content() and reply.metadata.src_node_id == 0:",
        "server_app/test_hostile_replies.py",
    ),
    Fault(
        "an update's length is compared with its own",
        "strategies/exchange/lengths.py",
        "usual = _median_of_the_others(ranked, length) if len(ranked) > 1 else own",
        "usual = max(ranked) if len(ranked) > 1 else own",
        "strategies/test_plausible.py",
    ),
    Fault(
        "images beyond the range of real ones are believed",
        "strategies/exchange/rules.py",
        'if found > allowed * (1 + ROUNDED):\n            raise PayloadError(\n                f"its images',
        'if found > 1e3 * allowed:\n            raise PayloadError(\n                f"its images',
        "strategies/test_hostile_parts.py",
    ),
    # ---- privacy ---------------------------------------------------------------------------------
    Fault(
        "contributions are not clipped",
        "synth/private_release.py",
        "factors = (clip / lengths).clamp_(max=1)",
        "factors = torch.ones_like(lengths)",
        "synth/test_private_gradients.py contract/test_privacy.py",
    ),
    Fault(
        "the noise forgets the clip",
        "synth/private_release.py",
        "return self.noise_multiplier * self.clip / self.step",
        "return self.noise_multiplier / self.step",
        "synth/test_private_matching.py",
    ),
    Fault(
        "draws need no charge",
        "client_app/draws.py",
        "        if self.client.round.charged is None:\n",
        "        if self.client is None:\n",
        "client_app/test_noise.py contract/test_privacy.py",
    ),
    Fault(
        "rates are told where counts are private",
        "client_app/draws.py",
        'reports = not at.private or config.privacy.counts == "public"',
        "tell = True",
        "client_app/test_site_ledger.py",
    ),
    Fault(
        "the ledger's head is written before the line",
        "common/privacy/ledger.py",
        "                _write(file, line)\n                os.fsync(file)\n",
        "                self._write_tip(Lines((*lines.charges, charge), (*lines.chain, checksum)).head)\n"
        "                _write(file, line)\n                os.fsync(file)\n",
        "common/test_killed_ledgers.py common/test_privacy_ledger.py",
    ),
    Fault(
        "a ledger that lost its last lines is taken",
        "common/privacy/ledger.py",
        "        if not found.has(least):\n",
        "        if not found.has(least) and found.head.length > least.length:\n",
        "common/test_privacy_ledger.py",
    ),
    Fault(
        "two purposes share a stream",
        "common/draws/seeding.py",
        'len(text).to_bytes(4, "big") + text for text in texts',
        "text for text in texts",
        "common/test_entropy.py common/test_data_samples.py synth/test_row_draws.py",
    ),
    Fault(
        "a secret sum forgets a site's weight",
        "common/secret/summand.py",
        "parts.append(rounded.astype(np.int64) * weight)",
        "parts.append(rounded.astype(np.int64))",
        "common/test_summand.py strategies/test_secret_sum.py",
    ),
    # ---- records ---------------------------------------------------------------------------------
    Fault(
        "a file is written in place",
        "common/storage/files.py",
        '    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")\n',
        "    temporary = path\n",
        "contract/test_files.py server_app/test_full_disk.py",
    ),
    Fault(
        "a resumed run keeps the line of a round that is repeated",
        "server_app/record.py",
        'split(b"\\n")[:number]',
        'split(b"\\n")[: number + 1]',
        "server_app/test_resume.py server_app/test_killed_at_any_write.py",
    ),
    Fault(
        "a resumed strategy begins afresh",
        "server_app/resume.py",
        "            strategy.restore(checkpoint.strategy)\n            strategy.members",
        "            strategy.members",
        "contract/test_methods.py server_app/test_resume.py",
    ),
    Fault(
        "a user's failing callback ends the run",
        "server_app/tracking.py",
        "        except Exception as error:\n            text",
        "        except ValueError as error:\n            text",
        "server_app/test_tracking.py",
    ),
    Fault(
        "a run goes on from one that has not its round",
        "client_app/state.py",
        "found = [folder for folder, rounds in others.items() if taken in rounds]",
        "found = [folder for folder, rounds in others.items() if rounds]",
        "server_app/test_site_memory.py client_app/test_memory_of_rounds.py",
    ),
    # ---- data ------------------------------------------------------------------------------------
    Fault(
        "a site's hold-out is among what it learns from",
        "common/division.py",
        "return indices[kept], indices[held]",
        "return indices, indices[held]",
        "server_app/test_figures_by_site.py server_app/test_validation_at_sites.py",
    ),
    Fault(
        "a written cell is computed by a spreadsheet",
        "common/storage/files.py",
        'return f"\'{cell}"',
        "return cell",
        "common/test_rows.py nectar/test_compare_table.py",
    ),
    # ---- commands --------------------------------------------------------------------------------
    Fault(
        "recall is divided by what was taken for the class",
        "nectar/confusion.py",
        '"recall": right / np.where(images, images, np.nan)',
        '"recall": right / np.where(taken, taken, np.nan)',
        "nectar/test_score.py",
    ),
)


def seen(fault: Fault) -> tuple[str, float]:
    """Plant a fault in a copy; return ``seen``, ``unseen``, ``too slow`` or why it was not planted, and the seconds."""
    began = time.monotonic()
    text = (ROOT / fault.path).read_text(encoding="utf-8")
    if text.count(fault.old) != 1:
        return f"old text found {text.count(fault.old)} times", 0.0
    with tempfile.TemporaryDirectory(prefix="nectar-planted-") as place:
        for name in COPIED:
            shutil.copytree(
                ROOT / name, Path(place, name), ignore=shutil.ignore_patterns("__pycache__")
            )
        for name in FILES:
            shutil.copy2(ROOT / name, place)
        Path(place, fault.path).write_text(text.replace(fault.old, fault.new), encoding="utf-8")
        files = [f"tests/{file}" for file in fault.tests.split()]
        words = [
            "-m",
            "pytest",
            "-xq",
            "-n0",
            "-p",
            "no:cacheprovider",
            "--show-capture=no",
            *files,
        ]
        try:
            done = subprocess.run(
                [sys.executable, *words],
                cwd=place,
                env=os.environ | {"PYTHONPATH": place},
                capture_output=True,
                text=True,
                timeout=SECONDS,
            )
        except subprocess.TimeoutExpired:
            return "too slow", time.monotonic() - began
    verdict = {0: "unseen", 1: "seen"}.get(done.returncode, f"pytest exit code {done.returncode}")
    return verdict, time.monotonic() - began


def main(names: list[str]) -> int:
    """Plant each fault, or those whose names hold one of ``names``; print what became of it."""
    chosen = [f for f in FAULTS if not names or any(name in f.name for name in names)]
    missed = 0
    with ThreadPoolExecutor(2) as pool:
        for fault, (verdict, seconds) in zip(chosen, pool.map(seen, chosen), strict=True):
            missed += verdict != "seen"
            print(f"{verdict:9} {seconds:3.0f} s  {fault.path}: {fault.name}", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} seen")
    return missed != 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
