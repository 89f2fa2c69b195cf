"""Every form of a decoder for the Neural Engine that `plan` can choose beside `--form ane` without further flags, in turn on this CPU.

    python3 scripts/peers/forms.py PEERS MODEL.gguf.. [--contexts 512,2048] [--threads 1,2] [--turns 3]
        [--only PATTERN,..] [--out ROWS.jsonl] [--thane target/release/thane] [--python PYTHON]

Files, rows and figures are those of engine_form.py: rows are `form/MODEL FORM WORK CONTEXT/THREADS`. The goal is 0.9
times the speed of `--form ane`, in at most its memory.
"""

import engine_form
import rows

GOAL = 0.9
EXPLICIT, HOST = "--kv=explicit", "--lookup=host"
FORMS = {
    "explicit": [EXPLICIT],
    "host": [HOST],
    "explicit-host": [EXPLICIT, HOST],
    "explicit-host-32": [EXPLICIT, HOST, "--block=32"],
    "verify": ["--verify=4"],
    "top40": ["--head=top40"],
    "host-head": ["--head=host"],
    "m4": ["--target=m4"],
}


class Beside(engine_form.Forms):
    def row(self, model, form, work, context, threads):
        bench = lambda flags: self.bench(work, self.engine(model, context, *flags), context, threads)
        programs = {"Thane": lambda: bench(FORMS[form]), "Thane --form ane": lambda: bench([])}
        return rows.Row("form", f"{model.stem} {form} {work} {context}", threads, programs, GOAL)


def main():
    args = engine_form.arguments(__doc__)
    forms = Beside(args)
    works = ("decode", "decode-full", "prefill")
    engine_form.measure_all(
        args,
        [forms.row(m, f, w, c, t) for m in args.models for f in FORMS for w in works for c in args.contexts for t in args.threads],
    )


if __name__ == "__main__":
    main()
