"""Chat templates: crafted ones of the classes that have harmed readers of Jinja, and random ones by a grammar."""

BIG = [
    "0",
    "1",
    "-1",
    "2",
    "63",
    "64",
    "1000",
    "65536",
    "1000000",
    "2000000000",
    "4000000000",
    "2**31",
    "2**63-1",
]
BIG += [
    "9223372036854775807",
    "-9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
]
BIG += [
    "170141183460469231731687303715884105727",
    "1" + "0" * 60,
    "1e308",
    "1e999",
    "0.1",
    "-0.0",
    "none",
    "true",
    "''",
]
STRINGS = [
    "''",
    "'a'",
    "'abc'",
    "' '",
    "'\\n'",
    "'é'",
    "'日本語'",
    "'a,b,,c'",
    "'%s %d'",
    "'{}'",
    "'\\x00'",
    "bos_token",
]
NAMES = [
    "messages",
    "messages[0]",
    "messages[0].content",
    "messages[-1]['role']",
    "bos_token",
    "eos_token",
    "tools",
]
NAMES += [
    "add_generation_prompt",
    "documents",
    "nothing",
    "loop",
    "loop.index",
    "self",
    "x",
    "ns",
    "ns.a",
    "strftime_now",
]
FILTERS = """
    abs attr batch bool capitalize count d default dictsort e escape first float format groupby
    indent int items join last length lines list lower map max min pprint reject rejectattr
    replace reverse round safe select selectattr slice sort split string sum title tojson trim
    unique upper urlencode zip chain
""".split()
METHODS = """
    capitalize casefold center count endswith find format get index isalnum isalpha isdigit
    islower isspace items join keys ljust lower lstrip partition pop removeprefix replace rfind
    rjust rpartition rsplit rstrip split splitlines startswith strip swapcase title upper
    values zfill append extend insert copy update encode
""".split()
TESTS = [
    "defined",
    "undefined",
    "none",
    "string",
    "number",
    "mapping",
    "iterable",
    "sequence",
    "odd",
    "divisibleby(0)",
]
TESTS += [
    "in(messages)",
    "eq(1)",
    "startingwith('a')",
    "sameas(x)",
    "boolean",
    "true",
    "even",
    "filter('x')",
    "test('x')",
]
KWARGS = """
    indent width first blank sep attribute default reverse case_sensitive by count fill_with
    linecount precision method maxsplit ensure_ascii sort_keys separators x
""".split()
OPERATORS = [
    "+",
    "-",
    "*",
    "/",
    "//",
    "%",
    "**",
    "~",
    "and",
    "or",
    "in",
    "not in",
    "==",
    "!=",
    "<",
    ">=",
    "if true else",
]

LOOP = "{% for m in messages %}{{ m.content }}{% endfor %}"


def crafted(rng):
    """One of the classes, its numbers drawn."""
    n = rng.choice([100, 1000, 8000, 50000, 200000])
    small = rng.choice([2, 3, 6, 20])
    big = rng.choice(BIG[8:20])
    text = rng.choice(STRINGS)
    kinds = [
        # Parsing: what nests, by each of the parser's ways down.
        lambda: "{% if a %}b" + "{% elif a %}b" * n + "{% endif %}",
        lambda: "{% if a %}" * n + rng.choice(["", "x" + "{% endif %}" * n]),
        lambda: "{% for a in b %}" * n + rng.choice(["", "{% endfor %}" * n]),
        lambda: "{{ " + "(" * n + "1" + rng.choice(["", ")" * n]) + " }}",
        lambda: (
            "{{ "
            + rng.choice(["[", "{'a': ", "not ", "-", "a if b else ", "a[", "f("]) * n
            + "1 }}"
        ),
        lambda: (
            "{{ a"
            + rng.choice(
                [".b", "|upper", "[0]", "()", " + 1", " ~ a", " and a", " is defined", "**2"]
            )
            * n
            + " }}"
        ),
        lambda: "{{ 1 " + rng.choice(["< 1 ", "in a ", "or 2 ", "if a else 1 "]) * n + "}}",
        lambda: "{% set " + ".".join(["a"] * n) + " = 1 %}",
        lambda: "{% set " + "(" * n + "a" + ")" * n + " = 1 %}",
        lambda: "{% macro m() %}" * n + "{% endmacro %}" * n,
        lambda: "{% block b %}" * n + "{% endblock %}" * n,
        lambda: "{% filter upper %}" * n + "{% endfilter %}" * n,
        lambda: "{% call m() %}" * n + "{% endcall %}" * n,
        lambda: "{% set a %}" * n + "{% endset %}" * n,
        lambda: "{% with a = 1 %}" * n + "{% endwith %}" * n,
        lambda: "{% generation %}" * n + "{% endgeneration %}" * n,
        lambda: "{# " * n,
        lambda: "{{ '" + "a" * n,
        lambda: "{% raw %}" * n,
        lambda: "{{ " + "9" * n + " }}",
        lambda: "{{ '" + "\\u" + "d800" * small + "' }}",
        # Time: loops in loops, and what never ends.
        lambda: "{% for a in range(100000) %}" * small + "x" + "{% endfor %}" * small,
        lambda: "{% for a in range(" + big + ") %}{% endfor %}",
        lambda: "{% for a in range(99999) %}{% if a in range(99999)|list %}{% endif %}{% endfor %}",
        lambda: (
            "{% for a in 'a'.center(5000) %}{% for b in 'a'.center(5000) %}{{ a ~ b }}{% endfor %}{% endfor %}"
        ),
        lambda: "{{ range(100000)|list|map('string')|join|length }}" * small,
        lambda: (
            "{% set x = range(90000)|list %}{{ x|sort|unique|list|length }}{{ x|batch(1)|list|length }}"
        ),
        lambda: "{% for a in messages recursive %}{{ loop(messages) }}{% endfor %}",
        lambda: "{{ ('a' * 90000).replace('a', 'b' * 9000)|length }}",
        lambda: (
            "{{ ('ab' * 90000).split('a')|length }}{{ ('a' * 100000).find('a' * 50000 ~ 'b') }}"
        ),
        # Memory: what doubles or names a size.
        lambda: (
            "{% set ns = namespace(a='ab') %}{% for i in range("
            + str(rng.choice([20, 40, 90]))
            + ") %}{% set ns.a = ns.a ~ ns.a %}{% endfor %}{{ ns.a|length }}"
        ),
        lambda: (
            "{% set ns = namespace(a=[1]) %}{% for i in range(60) %}{% set ns.a = ns.a + ns.a %}{% endfor %}{{ ns.a|length }}"
        ),
        lambda: (
            "{% set ns = namespace(a=[]) %}{% for i in range("
            + str(n)
            + ") %}{% set ns.a = [ns.a] %}{% endfor %}{{ ns.a }}"
        ),
        lambda: (
            "{% set ns = namespace(a={}) %}{% for i in range("
            + str(n)
            + ") %}{% set ns.a = {'a': ns.a} %}{% endfor %}{{ ns.a|tojson }}"
        ),
        lambda: "{{ " + text + " * " + big + " }}",
        lambda: "{{ [" + text + "] * " + big + " }}",
        lambda: (
            "{{ range("
            + big
            + ")|"
            + rng.choice(["list", "join", "sum", "max", "tojson", "reverse", "last", "length"])
            + " }}"
        ),
        lambda: (
            "{{ "
            + text
            + "|indent("
            + big
            + ") }}{{ 'a\nb'|indent(width="
            + big
            + ", first=true) }}"
        ),
        lambda: "{{ messages|tojson(indent=" + big + ") }}",
        lambda: (
            "{{ "
            + text
            + "."
            + rng.choice(["center", "ljust", "rjust", "zfill"])
            + "("
            + big
            + ") }}"
        ),
        lambda: (
            "{{ '%"
            + big.strip("-")
            + "d'|format(1) }}{{ '%."
            + big.strip("-")
            + "f'|format(1.5) }}"
        ),
        lambda: "{{ '{:>" + big.strip("-") + "}'.format(1) }}",
        lambda: "{{ messages|" + rng.choice(["batch", "slice"]) + "(" + big + ", 'x')|list }}",
        lambda: "{{ 1.5|round(" + big + ") }}{{ 2 ** " + big + " }}{{ 2 ** 62 * 4 }}",
        lambda: LOOP * min(n, 20000),
        lambda: "a" * n + LOOP,
        # Recursion at run time.
        lambda: "{% macro m(n) %}{{ m(n) }}{% endmacro %}{{ m(1) }}",
        lambda: "{% macro m(n) %}{{ m(n + 1) ~ m(n + 1) }}{% endmacro %}{{ m(1) }}",
        lambda: (
            "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}{{ a() }}"
        ),
        lambda: (
            "{% macro m() %}{{ caller() }}{% endmacro %}{% call m() %}{% call m() %}{{ m() }}{% endcall %}{% endcall %}"
        ),
        lambda: (
            "{% set ns = namespace() %}{% set ns.a = ns %}{{ ns"
            + rng.choice(
                ["", "|tojson", "|string", "|length", "|pprint", " == ns", ".a.a", "|items|list"]
            )
            + " }}"
        ),
        lambda: (
            "{% set ns = namespace(a=[]) %}{% set ns.a = [ns] %}{{ ns }}{{ ns.a|"
            + rng.choice(["tojson", "sort", "string", "unique|list"])
            + " }}"
        ),
        lambda: "{% include 'chat_template' %}",
        lambda: "{% extends 'chat_template' %}",
        lambda: "{% import 'chat_template' as t %}{{ t }}{% from 'chat_template' import a %}",
        lambda: "{% block a %}{{ self.a() }}{% endblock %}",
        # Edges of functions.
        lambda: (
            "{{ "
            + text
            + ".count("
            + rng.choice(STRINGS)
            + ") }}{{ 'abc'.count('') }}{{ 'é'.count('') }}"
        ),
        lambda: (
            "{{ "
            + text
            + "."
            + rng.choice(["split", "rsplit", "partition", "rpartition", "replace", "find", "rfind"])
            + "(''"
            + rng.choice(["", ", " + big, ", ''"])
            + ") }}"
        ),
        lambda: (
            "{{ "
            + text
            + "["
            + big
            + ":"
            + rng.choice(BIG)
            + ":"
            + rng.choice(["0", "-1", big])
            + "] }}"
        ),
        lambda: (
            "{{ messages[" + big + "] }}{{ messages[" + rng.choice(BIG) + ":] }}{{ messages[::0] }}"
        ),
        lambda: (
            "{{ "
            + big
            + rng.choice([" // ", " % ", " / ", " * ", " + ", " - ", " ** "])
            + rng.choice(["0", "-1", big])
            + " }}"
        ),
        lambda: (
            "{{ range("
            + ", ".join(rng.choice(BIG) for _ in range(rng.choice([1, 2, 3])))
            + ")|list }}"
        ),
        lambda: (
            "{{ strftime_now('"
            + rng.choice(["%", "%-", "%Q", "%" * n, "%Y" * n, "%-d%", "é%日", "%10000000Y"])
            + "') }}"
        ),
        lambda: (
            "{{ raise_exception("
            + rng.choice(["'x'", "", "1", "messages", "'x' * 100000", "'\\x1b[31m'"])
            + ") }}"
        ),
        lambda: (
            "{{ messages|sort(attribute="
            + text
            + ") }}{{ messages|groupby("
            + text
            + ") }}{{ [1, 'a', none]|sort }}"
        ),
        lambda: (
            "{{ messages|map(attribute='a.b.c')|list }}{{ messages|map('nothing')|list }}{{ messages|map|list }}"
        ),
        lambda: (
            "{{ loop.cycle() }}{% for a in messages %}{{ loop.cycle() }}{{ loop.changed() }}{{ loop.previtem.a }}{% endfor %}"
        ),
        lambda: (
            "{{ cycler() }}{{ joiner()() }}{{ dict(a=1, a=2) }}{{ namespace(1) }}{{ lipsum("
            + big
            + ") }}{{ debug() }}"
        ),
        lambda: (
            "{% for a, b in messages %}{% endfor %}{% for a in 1 %}{% endfor %}{% set a, b = 1 %}"
        ),
        lambda: "{% break %}{% continue %}{% for a in b %}{% break %}{% endfor %}",
        lambda: (
            "{%"
            + rng.choice(
                [
                    "",
                    "-",
                    "+",
                    "%}",
                    " if",
                    " for",
                    " set",
                    " endif %}",
                    " macro",
                    " x %}",
                    " if -%}",
                ]
            )
        ),
        lambda: (
            "{{ '\\ud800' }}{{ '\\x" + rng.choice(["", "0", "zz", "ff"]) + "' }}{{ '\\U110000' }}"
        ),
        lambda: rng.choice(["", " ", "\0", "\ufeff", "{", "}}", "%}", "{{}}", "{%%}", "{#", "{{'"]),
    ]
    return rng.choice(kinds)()


def _atom(rng):
    kind = rng.random()
    return rng.choice(NAMES if kind < 0.4 else STRINGS if kind < 0.75 else BIG)


def _arguments(rng, depth):
    given = [_expression(rng, depth - 1) for _ in range(rng.choice([0, 0, 1, 1, 2, 3]))]
    if rng.random() < 0.25:
        given.append(f"{rng.choice(KWARGS)}={_expression(rng, 0)}")
    return "(" + ", ".join(given) + ")"


def _expression(rng, depth):
    if depth <= 0:
        return _atom(rng)
    inner = lambda: _expression(rng, depth - 1)
    kind = rng.randrange(11)
    if kind < 2:
        return f"{inner()} {rng.choice(OPERATORS)} {inner()}"
    if kind < 4:
        return f"{inner()}|{rng.choice(FILTERS)}" + rng.choice(["", _arguments(rng, depth)])
    if kind < 7:
        return f"{rng.choice([_atom, lambda r: '(' + inner() + ')'])(rng)}.{rng.choice(METHODS)}{_arguments(rng, depth)}"
    if kind == 7:
        return f"({inner()})[{rng.choice(['', inner()])}:{rng.choice(['', inner()])}{rng.choice(['', ':', ':' + inner()])}]"
    if kind == 8:
        return rng.choice(["[{}, {}]", "{{'a': {}, {}: 1}}", "({}, {})", "({})[{}]"]).format(
            inner(), inner()
        )
    if kind == 9:
        return f"{inner()} is {rng.choice(['', 'not '])}{rng.choice(TESTS)}"
    return f"{rng.choice(['range', 'dict', 'namespace', 'strftime_now', 'raise_exception', 'm', 'loop'])}{_arguments(rng, depth)}"


def _statement(rng, depth):
    expression = lambda: _expression(rng, rng.choice([0, 1, 1, 2, 3]))
    body = lambda: (
        "".join(_statement(rng, depth - 1) for _ in range(rng.choice([1, 1, 2, 3])))
        if depth > 0
        else "x"
    )
    kind = rng.randrange(12)
    if kind < 6:
        return "{{ " + expression() + " }}"
    if kind == 6:
        return (
            "{% for "
            + rng.choice(["x", "x, y", "m"])
            + " in "
            + expression()
            + rng.choice(["", " if x", " recursive"])
            + " %}"
            + body()
            + "{% endfor %}"
        )
    if kind == 7:
        return (
            "{% if "
            + expression()
            + " %}"
            + body()
            + rng.choice(["", "{% else %}" + body()])
            + "{% endif %}"
        )
    if kind == 8:
        return (
            "{% set "
            + rng.choice(["x", "ns", "ns.a", "x, y"])
            + " = "
            + rng.choice(["namespace(a=" + expression() + ")", expression()])
            + " %}"
        )
    if kind == 9:
        return "{% macro m(x" + rng.choice(["", "=1", ", y"]) + ") %}" + body() + "{% endmacro %}"
    if kind == 10:
        return (
            "{% "
            + rng.choice(
                ["call m(x)", "filter " + rng.choice(FILTERS), "with x = " + expression(), "set x"]
            )
            + " %}"
            + body()
            + "{% end"
            + rng.choice(["call", "filter", "with", "set"])
            + " %}"
        )
    return rng.choice(
        [
            "text\n",
            "{# c #}",
            "{%- generation -%}",
            "{% endgeneration %}",
            " ",
            "{{- x -}}",
            "{% break %}",
        ]
    )


def random(rng):
    """A template by the grammar."""
    return "".join(_statement(rng, 3) for _ in range(rng.choice([1, 2, 4, 8])))
