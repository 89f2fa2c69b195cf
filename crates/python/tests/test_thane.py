"""What the module gives equals what the program prints, and what numpy computes."""

import json
import math
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path

import numpy
import thane

MODELS = Path("tests/models")
EMBEDDER = str(MODELS / "tiny-embed/bert-mean")
TEXTS = ["a cat", "the quick brown fox jumps over the lazy dog", "", "naïve café 東京"]
needs_program = unittest.skipUnless("THANE_PROGRAM" in os.environ, "no program beside the library")


def program(*arguments):
    done = subprocess.run([os.environ["THANE_PROGRAM"], *arguments], capture_output=True, text=True, check=True)
    return done.stdout


def in_process(code, **more):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, **more)


class Embedders(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.embedder = thane.Embedder(EMBEDDER, threads=1)

    @needs_program
    def test_vectors_are_those_of_the_program(self):
        for text in TEXTS[:2]:
            line = program("embed", EMBEDDER, text, "--threads", "1", "--json", "--quiet")
            said = json.loads(line)
            vector = numpy.asarray(said["embeddings"][0], dtype=numpy.float32)
            numpy.testing.assert_array_equal(self.embedder.encode(text), vector)

    def test_rows_are_in_order_and_depend_on_no_others(self):
        rows = self.embedder.encode(TEXTS)
        self.assertEqual(rows.shape, (len(TEXTS), self.embedder.dimension))
        for text, row in zip(TEXTS, rows):
            numpy.testing.assert_allclose(self.embedder.encode(text), row, atol=2e-6)
        self.assertEqual(self.embedder.encode([]).shape, (0, self.embedder.dimension))

    @needs_program
    def test_chunks_are_those_of_the_program(self):
        chunks = ["a cat", "the quick brown fox", "a dog"]
        for name in ("bert-mean", "bert-cls", "modernbert-mean", "qwen3-pplx-context"):
            model = str(MODELS / "tiny-embed" / name)
            line = program("embed", model, "--chunks", *chunks, "--threads", "1", "--quiet", "--format", "float")
            rows = numpy.asarray(json.loads(line), dtype=numpy.float32)
            found = thane.Embedder(model, threads=1).encode_chunks(chunks)
            numpy.testing.assert_allclose(found.reshape(rows.shape), rows, atol=1e-6)
        with self.assertRaisesRegex(ValueError, "found one text"):
            self.embedder.encode_chunks("a cat")

    @needs_program
    def test_bits_are_packed_as_the_program_packs_them(self):
        for name in ("bert-mean", "qwen3-pplx"):
            model = str(MODELS / "tiny-embed" / name)
            for kind in ("binary", "ubinary"):
                line = program("embed", model, TEXTS[1], "--format", kind, "--threads", "1", "--quiet")
                found = thane.Embedder(model, threads=1).encode(TEXTS[1], precision=kind)
                self.assertEqual(found.tolist(), json.loads(line))

    def test_precisions_are_those_of_numpy(self):
        rows = self.embedder.encode(TEXTS)
        half = self.embedder.encode(TEXTS, precision="float16")
        numpy.testing.assert_array_equal(half, rows.astype(numpy.float16))
        packed = self.embedder.encode(TEXTS, precision="ubinary", packing="sentence-transformers")
        numpy.testing.assert_array_equal(packed, numpy.packbits(rows > 0, axis=1))
        signed = self.embedder.encode(TEXTS, precision="binary", packing="sentence-transformers")
        numpy.testing.assert_array_equal(signed, (numpy.packbits(rows > 0, axis=1) - 128).astype(numpy.int8))
        int8 = self.embedder.encode(TEXTS, precision="int8")
        expected = numpy.clip(numpy.rint(numpy.tanh(rows.astype(numpy.float64)) * 127), -128, 127)
        self.assertLessEqual(numpy.abs(int8 - expected).max(), 1)

    def test_fewer_elements_are_a_slice(self):
        rows = self.embedder.encode(TEXTS[:2])
        cut = self.embedder.encode(TEXTS[:2], truncate_dim=10)
        numpy.testing.assert_array_equal(cut, rows[:, :10])
        unit = self.embedder.encode(TEXTS[:2], truncate_dim=10, normalize_embeddings=True)
        expected = cut / numpy.linalg.norm(cut, axis=1, keepdims=True)
        numpy.testing.assert_allclose(unit, expected, atol=1e-6)

    def test_long_texts_are_cut_or_refused(self):
        long = "a cat " * 5000
        self.assertEqual(self.embedder.encode(long).shape, (self.embedder.dimension,))
        with self.assertRaises(thane.ThaneError):
            self.embedder.encode(long, truncate=False)

    def test_bad_arguments_are_refused(self):
        for flags in [{"truncate_dim": 0}, {"truncate_dim": 10_000}, {"precision": "int9"}]:
            with self.assertRaises(ValueError, msg=flags):
                self.embedder.encode("a", **flags)
        with self.assertRaisesRegex(ValueError, "prompt"):
            self.embedder.encode("a", prompt_name="nobody")
        for flags in [{"threads": 0}, {"numerics": "slow"}]:
            with self.assertRaises(ValueError, msg=flags):
                thane.Embedder(EMBEDDER, **flags)
        with self.assertRaisesRegex(thane.ThaneError, "no-such"):
            thane.Embedder("tests/no-such-model")
        with self.assertRaisesRegex(thane.ThaneError, "memory"):
            thane.Embedder(EMBEDDER, memory=1000)

    def test_what_is_no_text_is_named(self):
        with self.assertRaisesRegex(ValueError, r"sentences\[1\]: expected a text, found NoneType"):
            self.embedder.encode(["a", None])
        for flags in [{"threads": -1}, {"memory": -1}, {"max_tokens": -5}]:
            with self.assertRaisesRegex(ValueError, "expected 0 or more"):
                thane.Embedder(EMBEDDER, **flags)
        reranker = thane.Reranker(str(MODELS / "tiny-rerank/bert"), threads=1)
        for arguments in [("a", "one text"), ("a", ["b"], -1)]:
            with self.assertRaises(ValueError):
                reranker.rank(*arguments)
        with self.assertRaises(ValueError):
            reranker.predict(["a"])

    def test_a_copy_of_another_process_is_loaded_there(self):
        again = pickle.loads(pickle.dumps(self.embedder))
        numpy.testing.assert_array_equal(again.encode(TEXTS[0]), self.embedder.encode(TEXTS[0]))

    @unittest.skipUnless(hasattr(os, "fork"), "no fork")
    def test_a_fork_says_what_to_do(self):
        code = f"""
import os, thane
embedder = thane.Embedder({EMBEDDER!r})
child = os.fork()
if child == 0:
    try:
        embedder.encode("a")
    except thane.ThaneError as error:
        fresh = thane.Embedder({EMBEDDER!r}).encode("a")
        os._exit(0 if "fork" in str(error) and fresh.shape == (42,) else 1)
    os._exit(2)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
        done = in_process(code)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_threads_share_a_model(self):
        expected = self.embedder.encode(TEXTS[1])
        rows = []
        work = [threading.Thread(target=lambda: rows.append(self.embedder.encode(TEXTS[1]))) for _ in range(6)]
        for thread in work:
            thread.start()
        for thread in work:
            thread.join()
        self.assertEqual(len(rows), 6)
        for row in rows:
            numpy.testing.assert_array_equal(row, expected)

    def test_calls_keep_no_memory(self):
        def resident():
            return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

        if not Path("/proc/self/statm").exists():
            self.skipTest("no /proc")
        for _ in range(200):
            self.embedder.encode(TEXTS)
        before = resident()
        for _ in range(1000):
            self.embedder.encode(TEXTS)
        self.assertLess(resident() - before, 4 << 20)

    def test_importing_loads_no_numpy_and_starts_no_thread(self):
        code = ("import sys, threading, thane, pathlib; assert 'numpy' not in sys.modules; "
                "tasks = pathlib.Path('/proc/self/task'); assert not tasks.exists() or len(list(tasks.iterdir())) == 1")
        done = in_process(code)
        self.assertEqual(done.returncode, 0, done.stderr)

    @unittest.skipUnless(os.name == "posix", "signals")
    def test_an_interrupt_ends_the_work(self):
        code = f"""
import thane
embedder = thane.Embedder({EMBEDDER!r}, threads=1)
print("ready", flush=True)
try:
    embedder.encode(["a quick brown fox " * 20] * 400_000)
except KeyboardInterrupt:
    raise SystemExit(7)
"""
        child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        self.assertEqual(child.stdout.readline(), "ready\n")
        time.sleep(0.5)
        child.send_signal(signal.SIGINT)
        self.assertEqual(child.wait(timeout=300), 7)
        child.stdout.close()


class Rerankers(unittest.TestCase):
    def test_ranks_are_those_of_the_program(self):
        model = str(sorted((MODELS / "tiny-rerank").iterdir())[0])
        reranker = thane.Reranker(model, threads=1)
        texts = ["a dog", "a kitten on the mat", "rain"]
        ranked = reranker.rank("a cat", texts)
        self.assertEqual(sorted(row.index for row in ranked), [0, 1, 2])
        self.assertEqual(sorted((row.score for row in ranked), reverse=True), [row.score for row in ranked])
        scores = reranker.predict([("a cat", text) for text in texts])
        self.assertEqual([scores[row.index] for row in ranked], [row.score for row in ranked])
        if "THANE_PROGRAM" in os.environ:
            said = json.loads(program("rerank", model, "a cat", *texts, "--threads", "1", "--json", "--quiet"))
            self.assertEqual([row["index"] for row in said["results"]], [row.index for row in ranked])


class Generators(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.chat = thane.Generator(MODELS / "tiny-chat", threads=1)

    def test_lists_and_options_are_checked(self):
        for options in [{"stop": "ro"}, {"max_tokens": -1}]:
            with self.assertRaises(ValueError):
                self.chat.generate("hi", **options)
            with self.assertRaises(ValueError):
                self.chat.complete("hi", **options)
        with self.assertRaisesRegex(ValueError, "tools"):
            self.chat.complete("hi", tools=[{"type": "function"}])
        answer = self.chat.complete("n: ", schema='{"enum": [7]}', max_tokens=8)
        self.assertEqual(answer.text.strip(), "7")

    def test_an_answer_asks_for_no_other_within(self):
        with self.assertRaisesRegex(thane.ThaneError, "wait for itself"):
            self.chat.generate("hi", max_tokens=4, on_text=lambda _: self.chat.generate("x", max_tokens=1))

    def test_a_grammar_without_end_is_refused(self):
        with self.assertRaisesRegex(ValueError, "multipleOf"):
            self.chat.generate("hi", schema={"type": "integer", "multipleOf": 123456789})

    @needs_program
    def test_answers_are_those_of_the_program(self):
        answer = self.chat.generate("Hello there", max_tokens=24, temperature=0.0)
        said = program("run", str(MODELS / "tiny-chat"), "Hello there", "--max-tokens", "24", "--temperature", "0",
                       "--threads", "1", "--quiet")
        self.assertEqual(answer.text.strip(), said.strip())

    def test_pieces_make_the_answer(self):
        options = {"max_tokens": 20, "temperature": 0.0}
        whole = self.chat.generate("Hello there", **options)
        self.assertEqual("".join(self.chat.stream("Hello there", **options)), whole.text)
        pieces = []
        self.chat.generate("Hello there", on_text=pieces.append, **options)
        self.assertEqual("".join(pieces), whole.text)

    def test_an_answer_ends_where_the_reader_leaves(self):
        for piece in self.chat.stream("Hello there", max_tokens=200, temperature=0.0):
            break
        self.assertTrue(piece)
        ended = self.chat.generate("Hello there", max_tokens=200, temperature=0.0, on_text=lambda _: False)
        self.assertEqual(ended.finish_reason, "interrupted")

    def test_errors_of_a_callback_come_back(self):
        def fail(_):
            raise KeyError("mine")

        with self.assertRaisesRegex(KeyError, "mine"):
            self.chat.generate("Hello there", max_tokens=20, on_text=fail)

    def test_a_schema_holds_for_one_answer(self):
        for _ in range(3):
            text = self.chat.generate("Hello", max_tokens=200, schema={"enum": ["red", "green"]}).text
            self.assertIn(json.loads(text), ["red", "green"])
        self.assertRegex(self.chat.generate("Hello", max_tokens=20, regex="[0-9]{3}").text, "^[0-9]{3}$")
        free = self.chat.generate("Hello there", max_tokens=24, temperature=0.0)
        again = thane.Generator(MODELS / "tiny-chat", threads=1).generate("Hello there", max_tokens=24, temperature=0.0)
        self.assertEqual(free.text, again.text)

    def test_a_schema_may_be_a_text(self):
        self.assertEqual(self.chat.generate("Hello", schema='{"enum": ["red"]}').text, '"red"')
        for bad in [{"max_tokens": -3}, {"messages": []}, {"seed": -1}]:
            with self.assertRaises(ValueError, msg=bad):
                self.chat.generate(**{"messages": "Hello", **bad})

    def test_bad_options_are_refused(self):
        for flags in [{"temperature": -1.0}, {"temperature": math.nan}, {"temperature": "hot"}, {"top_p": 2.0},
                      {"min_p": -1.0}, {"repetition_penalty": 0.0}, {"schema": {"type": "nothing"}},
                      {"schema": {}, "regex": "a"}, {"regex": "a", "grammar": "start: /a/"}, {"regex": "("},
                      {"messages": [{"content": "no role"}]}]:
            flags = {"messages": "Hello", "max_tokens": 4, **flags}
            with self.assertRaises(ValueError, msg=flags):
                self.chat.generate(**flags)
        with self.assertRaisesRegex(ValueError, "heat"):
            self.chat.complete("Hello", heat=1)


class Tokenizers(unittest.TestCase):
    def test_ids_come_back_as_text(self):
        tokenizer = thane.Tokenizer(str(MODELS / "tiny-chat"))
        for text in ["Hello there", "naïve café"]:
            ids = tokenizer.encode(text, add_special_tokens=False)
            self.assertEqual(tokenizer.decode(ids), text)
            self.assertLess(max(ids), tokenizer.vocab_size)


class Packages(unittest.TestCase):
    @unittest.skipUnless(hasattr(os, "fork"), "no fork")
    def test_a_fork_forgets_models_in_peace(self):
        code = f"import os, thane\nm = thane.Embedder({EMBEDDER!r}, threads=2)\nm.encode('a')\npid = os.fork()\ndel m\n"
        code += "if pid == 0:\n    raise SystemExit(0)\nraise SystemExit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))"
        done = in_process(code)
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_a_call_is_that_of_the_program(self):
        package = thane.Package("tests/packages/ios16_half.mlpackage")
        random = numpy.random.default_rng(5)
        inputs = {}
        for feature in package.inputs():
            self.assertNotIn(None, feature.shape)
            inputs[feature.name] = random.standard_normal(feature.shape).astype(numpy.float32)
        ours = package.predict(inputs).outputs
        self.assertEqual(list(ours), [feature.name for feature in package.outputs()])
        if "THANE_PROGRAM" not in os.environ:
            return
        with tempfile.TemporaryDirectory() as folder:
            flags = []
            for name, array in inputs.items():
                kind = next(feature.dtype for feature in package.inputs() if feature.name == name)
                array = array.astype({"fp16": numpy.float16}.get(kind, array.dtype))
                numpy.save(f"{folder}/{name}.npy", array)
                flags += ["--input", f"{name}={folder}/{name}.npy"]
            program("predict", package.path, *flags, "-o", f"{folder}/out")
            for name, array in ours.items():
                numpy.testing.assert_array_equal(array, numpy.load(f"{folder}/out/{name}.npy"))

    def test_what_is_not_there_is_named(self):
        package = thane.Package("tests/packages/ios16_half.mlpackage")
        with self.assertRaisesRegex(ValueError, "no function `encode`, but main"):
            package.inputs("encode")
        with self.assertRaisesRegex(ValueError, "has no input `nobody`"):
            package.predict({"nobody": 1})
        with self.assertRaisesRegex(ValueError, "expected the input"):
            package.predict({})
        with self.assertRaisesRegex(thane.ThaneError, "no-such"):
            thane.Package("tests/no-such.mlpackage")

    def test_values_that_do_not_fit_are_refused(self):
        package = thane.Package("tests/packages/ios16_half.mlpackage")
        feature = package.inputs()[0]
        self.assertEqual(feature.dtype, "fp16")
        ones = numpy.ones(feature.shape)
        expected = package.predict({feature.name: ones.astype(numpy.float16)}).outputs
        big_endian = ones.astype(">f8")
        for same in [ones, ones.astype(numpy.float32), ones.astype(numpy.int64), ones.astype(bool), big_endian,
                     ones.tolist(), numpy.asfortranarray(ones)]:
            for name, found in package.predict({feature.name: same}).outputs.items():
                numpy.testing.assert_array_equal(found, expected[name])
        largest = float(numpy.finfo(numpy.float16).max)
        for fits in [largest, -largest, 1e-10, math.inf, math.nan]:
            package.predict({feature.name: ones * fits})
        for bad in [1e9, -1e9, 65536.0]:
            wrong = ones.copy()
            wrong.flat[-1] = bad
            with self.assertRaisesRegex(ValueError, f"`{feature.name}`: .* does not fit in fp16"):
                package.predict({feature.name: wrong})
        for wrong in [ones.astype(numpy.int64) * 100_000, ones.astype(complex), ones.astype(str), ones.astype(object)]:
            with self.assertRaisesRegex(ValueError, f"`{feature.name}`"):
                package.predict({feature.name: wrong})

    def test_integers_are_cast_by_their_values(self):
        from thane._package import _cast

        for kind, array in [("int32", [1, -2]), ("uint8", [0, 255]), ("int8", [-128, 127]), ("bool", [True, False])]:
            numpy.testing.assert_array_equal(_cast("x", numpy.array(array), kind), array)
        for kind, array in [("int32", [2**31]), ("uint8", [-1]), ("uint8", [256]), ("int32", [1.0]), ("bool", [1]),
                            ("uint64", [-1])]:
            with self.assertRaisesRegex(ValueError, "`x`: ", msg=(kind, array)):
                _cast("x", numpy.array(array), kind)
        self.assertEqual(_cast("x", numpy.array(5), "int32").shape, (1,))

    def test_ops_and_constants_are_listed(self):
        package = thane.Package("tests/packages/ios16_half.mlpackage")
        ops = package.ops()
        self.assertEqual(package.functions, ["main"])
        constants = [name for op in ops if op.kind == "const" for name in op.results]
        self.assertTrue(constants)
        with self.assertRaisesRegex(ValueError, "no constant"):
            package.constant("nobody")


@needs_program
class Verbs(unittest.TestCase):
    def test_convert_then_audit_then_run(self):
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "x.mlpackage"
            report = thane.convert(EMBEDDER, out, task="embed", buckets=[24, 48], target="m4")
            self.assertTrue(out.is_dir(), report)
            audited = thane.audit(out, target="m4")
            self.assertEqual(audited.targets[0].verdict, report.audits[0].verdict)
            vector = thane.Embedder(str(out), threads=1, numerics="f32").encode("a cat")
            reference = thane.Embedder(EMBEDDER, threads=1, numerics="f32").encode("a cat")
            self.assertGreater(vector @ reference / numpy.linalg.norm(vector) / numpy.linalg.norm(reference), 0.9999)

    def test_errors_are_the_program_s(self):
        with self.assertRaisesRegex(thane.ThaneError, "no-such"):
            thane.audit("tests/no-such.mlpackage")
        with self.assertRaisesRegex(thane.ThaneError, "nonsense"):
            thane.audit("tests/packages/ios16_half.mlpackage", nonsense=3)
