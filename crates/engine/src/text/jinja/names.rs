//! The names of all filters and tests.

const FILTERS: &[&str] = &[
    "abs",
    "attr",
    "batch",
    "capitalize",
    "center",
    "count",
    "d",
    "default",
    "dictsort",
    "e",
    "escape",
    "first",
    "float",
    "forceescape",
    "format",
    "groupby",
    "indent",
    "int",
    "items",
    "join",
    "last",
    "length",
    "list",
    "lower",
    "map",
    "max",
    "min",
    "reject",
    "rejectattr",
    "replace",
    "reverse",
    "round",
    "safe",
    "select",
    "selectattr",
    "slice",
    "sort",
    "string",
    "sum",
    "title",
    "tojson",
    "trim",
    "truncate",
    "unique",
    "upper",
    "wordcount",
];

const TYPE_TESTS: &[&str] = &[
    "boolean",
    "callable",
    "defined",
    "escaped",
    "false",
    "float",
    "integer",
    "iterable",
    "mapping",
    "none",
    "number",
    "sequence",
    "string",
    "true",
    "undefined",
];

const OTHER_TESTS: &[&str] = &[
    "!=",
    "==",
    "divisibleby",
    "eq",
    "equalto",
    "even",
    "filter",
    "ge",
    "greaterthan",
    "gt",
    "in",
    "le",
    "lessthan",
    "lower",
    "lt",
    "ne",
    "odd",
    "sameas",
    "test",
    "upper",
];

/// Whether there is a filter with this name.
pub(super) fn is_filter(name: &str) -> bool {
    FILTERS.contains(&name)
}

/// Whether there is a test with this name.
pub(super) fn is_test(name: &str) -> bool {
    TYPE_TESTS.contains(&name) || OTHER_TESTS.contains(&name)
}
