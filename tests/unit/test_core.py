"""Config, scales, run names, atomic files, YAML traps: what every stage stands on."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from causal_priors import artifacts, config, runs, yamlfile
from causal_priors.errors import UserError, refuse

ROOT = Path(__file__).resolve().parents[2]
SCALE_NAMES = ["nano", "micro", "mini", "paper"]


def scale(name):
    return config.load_scale(config.scale_file(name))


def refused(match):
    return pytest.raises(UserError, match=match)


class TestScales:
    # study.md 1: width, depth, heads, L, steps, tokens a step, lr, warm-up of S and C, vocabulary, evaluation tokens.
    TABLE = {
        "nano": ((16, 1, 2, 16, 5, 128, 3e-3, 0.1), (16, 1, 2, 16, 5, 128, 3e-3, 0.1), 300, 1_024),
        "micro": ((64, 2, 4, 64, 300, 1_024, 3e-3, 0.1), (64, 3, 4, 64, 300, 1_024, 3e-3, 0.1), 1_024, 65_536),
        "mini": (
            (256, 6, 8, 256, 3_000, 16_384, 2e-3, 0.02),
            (384, 8, 8, 512, 4_000, 16_384, 1.5e-3, 0.02),
            8_192,
            1_048_576,
        ),
        "paper": (
            (512, 8, 8, 512, 15_258, 32_768, 1e-3, 0.02),
            (768, 14, 12, 1_024, 61_035, 32_768, 6e-4, 0.02),
            50_304,
            4_194_304,
        ),
    }

    @pytest.mark.parametrize("name", SCALE_NAMES)
    def test_sizes_are_those_of_the_study(self, name):
        small, large, vocabulary, evaluation = self.TABLE[name]
        found = scale(name)
        for size, expected in ((found.sizes["S"], small), (found.sizes["C"], large)):
            assert (
                size.width,
                size.depth,
                size.heads,
                size.train_length,
                size.steps,
                size.tokens_per_step,
                size.learning_rate,
                size.warmup_fraction,
            ) == expected
            assert size.final_fraction == 0.1
        assert (found.vocabulary, found.evaluation_tokens) == (vocabulary, evaluation)

    def test_parameter_counts_of_the_source(self):
        sizes = scale("paper").sizes
        assert sizes["S"].non_embedding_parameters() == 25_220_096
        assert sizes["C"].non_embedding_parameters() == 99_231_744

    def test_the_digest_ignores_comments_and_sees_values(self, tmp_path):
        text = config.scale_file("micro").read_text()
        same, other = tmp_path / "a" / "micro.yaml", tmp_path / "b" / "micro.yaml"
        for path, content in ((same, "# a remark\n" + text), (other, text.replace("steps: 300", "steps: 301"))):
            path.parent.mkdir()
            path.write_text(content)
        assert config.load_scale(same).digest() == scale("micro").digest()
        assert config.load_scale(other).digest() != scale("micro").digest()

    @pytest.mark.parametrize(
        ("old", "new", "message"),
        [
            ("vocabulary: 1024", "vocabulari: 1024", r"vocabulari: is an unknown key; did you mean 'vocabulary'"),
            ("{width: 64, depth: 2", "{width: 64, deepth: 2", r"sizes\.S\.deepth: is an unknown key"),
            ("sizes:\n", "sizes:\n  X: {width: 1}\n", r"sizes\.X: is an unknown key"),
            ("learning_rate: 0.003", "learning_rate: 3e-3", r"'3e-3': looks like a number but YAML reads text"),
            ("learning_rate: 0.003", "learning_rate: fast", r"sizes\.S\.learning_rate = 'fast'"),
            (
                "heads: 4, train_length: 64, steps: 300",
                "heads: 5, train_length: 64, steps: 300",
                "no multiple of heads",
            ),
            ("status: exploratory", "status: on", "'on': is read differently"),
            ("status: exploratory", "status: confirmatory", "status = 'confirmatory': is not for this scale"),
            ("evaluation_tokens: 65536", "evaluation_tokens: 65537", "cannot be cut into blocks"),
            ("tokens_per_step: 1024", "tokens_per_step: 1000", "cannot be cut into windows"),
            ("name: micro", "name: macro", "differs from the file's name"),
            ("minimum_blocks: 8\n", "", "'minimum_blocks' is a required property"),
        ],
    )
    def test_a_wrong_scale_is_refused_by_file_and_key(self, tmp_path, old, new, message):
        path = tmp_path / "micro.yaml"
        text = config.scale_file("micro").read_text()
        assert old in text
        path.write_text(text.replace(old, new, 1))
        with refused(message) as caught:
            config.load_scale(path)
        assert "micro.yaml" in str(caught.value)

    def test_an_unknown_scale_names_the_known_ones(self):
        with refused("scale = 'huge': is not a scale; known scales: micro, mini, nano, paper"):
            config.scale_file("huge")


class TestConfig:
    def test_the_default_is_complete(self):
        data = yamlfile.load_yaml(ROOT / "workflow/config/config.yaml")
        assert config.load_config(data, "config.yaml").scale == "micro"

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"scal": "nano"}, "scal: is an unknown key; did you mean 'scale'"),
            ({"allow_repeats": "yes"}, "allow_repeats = 'yes'"),
            ({"arms": "my_prior.py"}, "arms = 'my_prior.py'"),
            ({"corpus": 3}, "corpus = 3"),
        ],
    )
    def test_a_typo_is_refused(self, change, message):
        data = yamlfile.load_yaml(ROOT / "workflow/config/config.yaml")
        with refused(re.escape(message)):
            config.load_config({**data, **change}, "config.yaml")


class TestYaml:
    @pytest.mark.parametrize(
        "text",
        ["a: 1e-3", "a: yes", "a: Off", "a: 1\na: 2", "a: &x [1]\nb: *x", "1: 2", "a: 010", "a: 0x1f", "a: 1_000"]
        + ["a: 2026-01-01", "a: 12:30", "a: [", "a: !!python/object/apply:os.system ['true']", "a: \x00", "{" * 2000],
    )
    def test_traps_are_errors_with_the_file_named(self, text):
        with refused(r"^f\.yaml"):
            yamlfile.parse_yaml(text, "f.yaml")

    def test_plain_values_keep_their_types(self):
        text = "a: 0.001\nb: true\nc: 12\nd: 'on'\ne: -1.5\nf: 1.0e-3\ng: text\nh: null"
        expected = {"a": 0.001, "b": True, "c": 12, "d": "on", "e": -1.5, "f": 0.001, "g": "text", "h": None}
        assert yamlfile.parse_yaml(text, "f.yaml") == expected

    def test_files_that_cannot_be_text_are_named(self, tmp_path):
        path = tmp_path / "f.yaml"
        with refused(r"f\.yaml: cannot be read"):
            yamlfile.load_yaml(path)
        path.write_bytes(b"a: \xff\xfe")
        with refused(r"f\.yaml: is not UTF-8"):
            yamlfile.load_yaml(path)
        path.write_bytes(b"a: " + b"x" * (1 << 20))
        with refused(r"f\.yaml: is larger than 1 MB"):
            yamlfile.load_yaml(path)


class TestRunNames:
    def test_names_and_runs_are_inverse(self):
        micro = scale("micro")
        for run in (runs.Run("S", "log-margin-t050", 1, 0), runs.Run("C", "cable", 4, 12)):
            assert runs.parse_run(run.name(micro), micro) == run
        assert runs.Run("C", "cable", 4, 0).name(micro) == "C-cable-L256-s0"

    @pytest.mark.parametrize(
        "name", ["S-rope-64-s0", "S-rope-L64", "X-rope-L64-s0", "S-rope-L65-s0", "S-rope-L64-s01", "../x"]
    )
    def test_other_spellings_are_refused(self, name):
        with refused(re.escape(name)):
            runs.parse_run(name, scale("micro"))


class TestFiles:
    def test_a_failed_write_leaves_the_old_file_and_no_rest(self, tmp_path):
        path = tmp_path / "a.json"
        artifacts.write_json(path, {"a": 1})
        with pytest.raises(ValueError, match="not JSON compliant"):
            artifacts.write_json(path, {"a": float("nan")})
        with pytest.raises(RuntimeError), artifacts.atomic_path(path) as temporary:
            temporary.write_text("half")
            raise RuntimeError
        assert json.loads(path.read_text()) == {"a": 1}
        assert [file.name for file in tmp_path.iterdir()] == ["a.json"]

    def test_a_folder_that_is_a_file_is_named(self, tmp_path):
        (tmp_path / "x").write_text("")
        with refused(r"x/y\.json: cannot be written"):
            artifacts.write_text(tmp_path / "x" / "y.json", "")

    def test_a_second_writer_is_refused_until_the_first_is_gone(self, tmp_path):
        code = (
            "import sys\nfrom causal_priors.artifacts import writer_lock\nfrom causal_priors.errors import UserError\n"
            "try:\n with writer_lock(sys.argv[1]): print('in')\nexcept UserError as error: print(error)"
        )
        other = [sys.executable, "-c", code, str(tmp_path)]
        with artifacts.writer_lock(tmp_path):
            assert "another process is writing here" in subprocess.check_output(other, text=True)
        assert subprocess.check_output(other, text=True) == "in\n"

    def test_a_batch_job_waits_for_the_first_writer(self, tmp_path):
        wait = "from causal_priors.artifacts import writer_lock\nimport sys\nwith writer_lock(sys.argv[1]): print('in')"
        with artifacts.writer_lock(tmp_path):
            second = subprocess.Popen(
                [sys.executable, "-c", wait, str(tmp_path)],
                env={**os.environ, "SLURM_JOB_ID": "7"},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            assert "waiting up to 10 minutes for another process that writes here" in second.stderr.readline()
            assert second.poll() is None
        assert second.communicate(timeout=60)[0] == "in\n"

    def test_what_a_killed_writer_of_weights_left_goes_and_nothing_else(self, tmp_path):
        whole = safetensors.numpy.save({"w": np.zeros(9)})
        for name, content in ((".tmpVf6sCw", whole[:40]), (".tmpAb1cD2", b""), (".tmpnotes1", b"mine")):
            (tmp_path / name).write_bytes(content)
        artifacts.write_bytes(tmp_path / "model.json", b"{}")
        assert len(list(tmp_path.iterdir())) == 4
        artifacts.write_bytes(tmp_path / "model.safetensors", whole)
        assert sorted(path.name for path in tmp_path.iterdir()) == [".tmpnotes1", "model.json", "model.safetensors"]

    def test_half_written_files_go_when_their_writer_is_gone(self, tmp_path):
        """Of another machine that cannot be seen; it counts as gone after a day."""
        writer = "import os, sys\nfrom causal_priors.artifacts import atomic_path\n"
        writer += "with atomic_path(sys.argv[1]) as path: path.write_text('half'); os._exit(9)"

        def leave(name):
            subprocess.run([sys.executable, "-c", writer, str(tmp_path / name)], check=False)
            (found,) = tmp_path.glob(f".{name}.*")
            return found

        def elsewhere(path):
            space = path.name.split(".")[-3]
            return path.rename(path.with_name(path.name.replace(space, "0" * len(space))))

        leave("here")
        there, old = elsewhere(leave("there")), elsewhere(leave("old"))
        os.utime(old, (0, 0))
        for name in ("here", "there", "old"):
            artifacts.write_text(tmp_path / name, "whole")
        assert list(tmp_path.glob(".*")) == [there]

    def test_canonical_json_has_one_form(self):
        assert artifacts.canonical_json({"b": 1, "a": [1.5, "é"]}) == '{"a":[1.5,"é"],"b":1}'.encode()
        # The sha256 of the empty string, as printed in FIPS 180 test vectors.
        empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
        assert artifacts.sha256_bytes(b"") == empty

    def test_an_error_names_file_key_value_and_remedy(self):
        error = refuse("is odd", file="f.yaml", key="a.b", value=3, remedy="make it even")
        assert str(error) == "f.yaml: a.b = 3: is odd; make it even"
