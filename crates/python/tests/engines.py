"""Runs models in engines and frameworks that are installed: python3 engines.py LIBRARY [NAME..], in the root of the repository.

NAME is langchain, llama_index, haystack, daft, ray or spark, all by default. What is not installed is skipped and said. Each job
gives the rows that `thane.Embedder` gives; in Ray and Spark a worker is killed in the middle, and no row is lost or doubled.
"""

import importlib.util
import os
import shutil
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
EMBEDDER = str(Path("tests/models/tiny-embed/bert-mean").resolve())
RERANKER = str(Path("tests/models/tiny-rerank/bert").resolve())
CHAT = str(Path("tests/models/tiny-chat").resolve())
NEEDS = {"langchain": "langchain_core", "llama_index": "llama_index", "haystack": "haystack", "daft": "daft", "ray": "ray",
         "spark": "pyspark"}


def texts(n):
    return [f"text {k} of {'a cat and ' * (k % 7)}a dog" for k in range(n)]


def expected(rows, **flags):
    import thane

    return thane.Embedder(EMBEDDER, threads=1).encode(rows, **flags)


def langchain():
    import numpy
    from thane.langchain import ThaneEmbeddings

    model = ThaneEmbeddings(EMBEDDER, threads=1)
    numpy.testing.assert_allclose(model.embed_documents(texts(3)), expected(texts(3)), atol=1e-6)
    numpy.testing.assert_allclose(model.embed_query(texts(1)[0]), expected(texts(1))[0], atol=1e-6)


def llama_index():
    import asyncio

    import numpy
    from thane.llama_index import ThaneEmbedding

    model = ThaneEmbedding(EMBEDDER, threads=1)
    numpy.testing.assert_allclose(model.get_text_embedding_batch(texts(5)), expected(texts(5)), atol=1e-6)
    numpy.testing.assert_allclose(model.get_query_embedding(texts(1)[0]), expected(texts(1))[0], atol=1e-6)
    numpy.testing.assert_allclose(asyncio.run(model.aget_query_embedding("a")), expected(["a"])[0], atol=1e-6)


def haystack():
    import numpy
    from haystack import Document, Pipeline
    from thane.haystack import ThaneDocumentEmbedder, ThaneTextEmbedder

    pipeline = Pipeline()
    pipeline.add_component("query", ThaneTextEmbedder(EMBEDDER, threads=1))
    pipeline.add_component("documents", ThaneDocumentEmbedder(EMBEDDER, threads=1, meta_fields=["title"]))
    pipeline = Pipeline.loads(pipeline.dumps(), allowed_modules=["thane.haystack"])
    documents = [Document(content=text, meta={"title": "t"}) for text in texts(3)]
    out = pipeline.run({"query": {"text": "a"}, "documents": {"documents": documents}})
    numpy.testing.assert_allclose(out["query"]["embedding"], expected(["a"])[0], atol=1e-6)
    found = [document.embedding for document in out["documents"]["documents"]]
    numpy.testing.assert_allclose(found, expected([f"t\n{text}" for text in texts(3)]), atol=1e-6)
    assert all(document.embedding is None for document in documents)


def same(table, n, rows):
    """The rows of a table are `rows`, each once, with their vectors."""
    import numpy

    assert table.num_rows == n, (table.num_rows, n)
    found = dict(zip(table.column("text").to_pylist(), table.column("embedding").to_pylist()))
    assert sorted(found) == sorted(rows), "rows are lost or doubled"
    numpy.testing.assert_allclose([found[text] for text in rows], expected(rows), atol=2e-6)


def daft():
    import daft as engine
    import numpy
    import thane
    import thane.daft as models
    from pyarrow import parquet

    with tempfile.TemporaryDirectory() as folder:
        rows = texts(50)
        frame = engine.from_pydict({"text": rows})
        vectors = models.embed(frame, EMBEDDER, threads=1)
        vectors.write_parquet(folder)
        same(parquet.read_table(folder), 50, rows)
        bits = models.embed(frame, EMBEDDER, threads=1, precision="int8").to_arrow()
        assert bits.column("embedding").to_pylist() == expected(rows, precision="int8").tolist()
        scores = models.rerank(frame, RERANKER, query="a cat", threads=1).to_pydict()["score"]
        known = thane.Reranker(RERANKER, threads=1).predict([("a cat", row) for row in rows])
        numpy.testing.assert_allclose(scores, known, atol=1e-5)
        answers = models.generate(frame.limit(2), CHAT, threads=1, max_tokens=4, temperature=0.0).to_pydict()["answer"]
        assert len(answers) == 2 and all(answers)


def ray():
    import pyarrow
    import ray as engine
    import thane
    import thane.ray as models
    from pyarrow import parquet

    os.environ.setdefault("RAY_DEDUP_LOGS", "0")
    engine.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    try:
        with tempfile.TemporaryDirectory() as folder:
            rows = texts(400)
            flag = f"{folder}/killed"

            def kill_once(batch):
                # The first process to take row 200 dies; its work is done again by another.
                if "text 200 of" in " ".join(batch.column("text").to_pylist()) and not os.path.exists(flag):
                    open(flag, "w").close()
                    os._exit(9)
                return batch

            source = engine.data.from_arrow(pyarrow.table({"text": rows})).repartition(8)
            killed = source.map_batches(kill_once, batch_format="pyarrow", batch_size=50)
            vectors = models.embed(killed, EMBEDDER, workers=2, threads=1, batch_size=50)
            assert models.write_parquet(vectors, f"{folder}/out") == 400
            assert os.path.exists(flag)
            same(parquet.read_table(f"{folder}/out"), 400, rows)
            names = sorted(os.listdir(f"{folder}/out"))
            again = models.embed(source, EMBEDDER, workers=1, threads=1, batch_size=50)
            models.write_parquet(again, f"{folder}/out")
            assert sorted(os.listdir(f"{folder}/out")) == names, "a job that is run again writes the same files"
            small = engine.data.from_arrow(pyarrow.table({"text": rows[:4]}))
            bits = models.embed(small, EMBEDDER, precision="ubinary", packing="sentence-transformers").take_all()
            assert [list(row["embedding"]) for row in bits] == expected(
                rows[:4], precision="ubinary", packing="sentence-transformers").tolist()
            assert len(models.rerank(small, RERANKER, query="a").take_all()) == 4
            assert all(row["answer"] for row in models.generate(small, CHAT, max_tokens=4, temperature=0.0).take_all())
            try:
                models.embed(engine.data.from_items([{"text": None}]), EMBEDDER).take_all()
            except Exception as error:
                assert "null" in str(error), error
            else:
                raise AssertionError("a null has a vector")
            assert issubclass(thane.ThaneError, Exception)
    finally:
        engine.shutdown()


def spark():
    import thane.spark as models
    from pyspark.sql import SparkSession
    from pyspark.sql.functions import col

    session = (SparkSession.builder.master("local[2,4]").config("spark.ui.enabled", "false")
               .config("spark.sql.shuffle.partitions", "4").getOrCreate())
    try:
        with tempfile.TemporaryDirectory() as folder:
            rows, flag = texts(400), f"{folder}/killed"
            frame = session.createDataFrame([(text,) for text in rows], "text string").repartition(8)

            def kill_once(batches):
                for batch in batches:
                    if "text 200 of" in " ".join(batch.column(0).to_pylist()) and not os.path.exists(flag):
                        open(flag, "w").close()
                        os._exit(9)
                    yield batch

            killed = frame.mapInArrow(kill_once, "text string")
            vectors = models.embed(killed, EMBEDDER, threads=1)
            vectors.write.parquet(f"{folder}/out")
            assert os.path.exists(flag)
            from pyarrow import parquet
            same(parquet.read_table(f"{folder}/out"), 400, rows)
            small = session.createDataFrame([(text,) for text in rows[:4]], "text string").coalesce(1)
            bits = models.embed(small, EMBEDDER, precision="int8").orderBy(col("text")).collect()
            order = sorted(rows[:4])
            assert [list(row.embedding) for row in bits] == expected(order, precision="int8").tolist()
            assert models.rerank(small, RERANKER, query="a").count() == 4
            assert all(row.answer for row in models.generate(small, CHAT, max_tokens=4, temperature=0.0).collect())
    finally:
        session.stop()


def main():
    library = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as folder:
        module = Path(folder) / "thane"
        shutil.copytree(HERE.parent / "python/thane", module)
        shutil.copy(library, module / "_thane.abi3.so")
        sys.path.insert(0, folder)
        os.environ["PYTHONPATH"] = folder
        os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
        for name in sys.argv[2:] or NEEDS:
            if importlib.util.find_spec(NEEDS[name]) is None:
                print(f"{name}: skipped: no package {NEEDS[name]}")
                continue
            globals()[name]()
            print(f"{name}: ok", flush=True)


if __name__ == "__main__":
    main()
