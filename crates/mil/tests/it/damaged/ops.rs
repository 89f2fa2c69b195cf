//! Ops that a model file must not hold.

use super::*;

pub(super) const OPS: &[Change<proto::Model>] = &[
    (
        "unknown op",
        |m| op(m, "linear").r#type = "frob".to_owned(),
        "unknown ops: `frob` (ios18)",
    ),
    (
        "unknown nested op",
        |m| op(m, "cond").blocks[0].operations[0].r#type = "frob".to_owned(),
        "`frob` (ios18)",
    ),
    (
        "unknown input",
        |m| {
            op(m, "linear")
                .inputs
                .insert("frob".to_owned(), names(&["a"]));
        },
        "op `linear` `y`: the op has no input `frob`",
    ),
    (
        "missing input",
        |m| {
            op(m, "linear").inputs.remove("x");
        },
        "`x` is missing",
    ),
    (
        "undefined value",
        |m| {
            op(m, "linear")
                .inputs
                .insert("x".to_owned(), names(&["nobody"]));
        },
        "input `x`: `nobody` is used before it is defined",
    ),
    (
        "own result",
        |m| {
            op(m, "linear").inputs.insert("x".to_owned(), names(&["y"]));
        },
        "`y` is used before it is defined",
    ),
    (
        "later value",
        |m| {
            op(m, "linear").inputs.insert("x".to_owned(), names(&["z"]));
        },
        "`z` is used before it is defined",
    ),
    (
        "value of a block",
        |m| {
            op(m, "concat")
                .inputs
                .insert("values".to_owned(), names(&["t", "y"]));
        },
        "`t` is used before it is defined",
    ),
    (
        "two values",
        |m| {
            op(m, "linear")
                .inputs
                .insert("x".to_owned(), names(&["a", "a"]));
        },
        "input `x`: expected one value, found 2",
    ),
    (
        "no value",
        |m| {
            op(m, "linear").inputs.insert("x".to_owned(), names(&[]));
        },
        "input `x`: expected one value, found 0",
    ),
    (
        "empty tuple",
        |m| {
            op(m, "concat")
                .inputs
                .insert("values".to_owned(), names(&[]));
        },
        "op `concat` `j`: `values`: expected a tuple",
    ),
    (
        "empty binding",
        |m| op(m, "linear").inputs.get_mut("x").unwrap().arguments[0].binding = None,
        "input `x`: the binding is empty",
    ),
    (
        "wrong operand",
        |m| {
            op(m, "linear")
                .inputs
                .insert("weight".to_owned(), names(&["axes"]));
        },
        "expected the element type of `weight` (tensor<int32, [2]>)",
    ),
    (
        "state as a tensor",
        |m| {
            op(m, "linear")
                .inputs
                .insert("x".to_owned(), names(&["cache"]));
        },
        "`x`: expected fp16, fp32 or int32, found state<",
    ),
    (
        "tensor as a state",
        |m| {
            op(m, "read_state")
                .inputs
                .insert("input".to_owned(), names(&["y"]));
        },
        "`input`: expected a state, found tensor<fp32, [3, 4]>",
    ),
    (
        "attribute",
        |m| {
            let name = op(m, "linear").attributes["name"].clone();
            op(m, "linear").attributes.insert("frob".to_owned(), name);
        },
        "the op has no attribute `frob`",
    ),
    (
        "name",
        |m| {
            let value = constant(m, 1).clone();
            op(m, "linear").attributes.insert("name".to_owned(), value);
        },
        "attribute `name`: expected a string",
    ),
    (
        "const by input",
        |m| {
            op(m, "const")
                .inputs
                .insert("val".to_owned(), names(&["x"]));
        },
        "the op has no input `val`",
    ),
    (
        "const without value",
        |m| {
            op(m, "const").attributes.remove("val");
        },
        "`val` is missing",
    ),
    (
        "fewer results",
        |m| op(m, "linear").outputs.clear(),
        "expected 1 results, found 0",
    ),
    (
        "more results",
        |m| {
            let output = op(m, "linear").outputs[0].clone();
            op(m, "linear").outputs.push(output);
        },
        "expected 1 results, found 2",
    ),
    (
        "no type",
        |m| op(m, "linear").outputs[0].r#type = None,
        "result `y`: a type is missing",
    ),
    (
        "other element type",
        |m| tensor(&mut op(m, "linear").outputs[0].r#type).data_type = 10,
        "`y`: expected the inferred type tensor<fp32, [3, 4]>, found the declared type \
         tensor<fp16, [3, 4]>",
    ),
    (
        "other shape",
        |m| tensor(&mut op(m, "linear").outputs[0].r#type).dimensions[1] = size(5),
        "found the declared type tensor<fp32, [3, 5]>",
    ),
    (
        "other rank",
        |m| {
            let ty = tensor(&mut op(m, "linear").outputs[0].r#type);
            ty.rank = 3;
            ty.dimensions.push(size(1));
        },
        "found the declared type tensor<fp32, [3, 4, 1]>",
    ),
    (
        "false rank",
        |m| tensor(&mut op(m, "linear").outputs[0].r#type).rank = 3,
        "expected 3 dimensions of a tensor, found 2",
    ),
    (
        "negative rank",
        |m| tensor(&mut op(m, "linear").outputs[0].r#type).rank = -1,
        "expected -1 dimensions of a tensor, found 2",
    ),
    (
        "unknown element type",
        |m| tensor(&mut op(m, "linear").outputs[0].r#type).data_type = 99,
        "unknown element type 99",
    ),
    (
        "no element type",
        |m| tensor(&mut op(m, "linear").outputs[0].r#type).data_type = 0,
        "unknown element type 0",
    ),
    (
        "no dimension",
        |m| tensor(&mut op(m, "linear").outputs[0].r#type).dimensions[0].dimension = None,
        "a dimension has no size",
    ),
    (
        "variadic",
        |m| {
            let unknown = dimension::Dimension::Unknown(dimension::Unknown { variadic: true });
            tensor(&mut op(m, "linear").outputs[0].r#type).dimensions[0].dimension = Some(unknown);
        },
        "expected a tensor of known rank",
    ),
    (
        "many dimensions",
        |m| {
            let ty = tensor(&mut op(m, "linear").outputs[0].r#type);
            ty.dimensions = vec![size(1); 33];
            ty.rank = 33;
        },
        "expected rank 32 or less, found rank 33",
    ),
    (
        "twice",
        |m| op(m, "linear").outputs[0].name = "x".to_owned(),
        "`x` is defined twice",
    ),
    (
        "twice in a block",
        |m| op(m, "cond").blocks[0].operations[0].outputs[0].name = "y".to_owned(),
        "`y` is defined twice",
    ),
    (
        "bad name",
        |m| {
            op(m, "concat").outputs[0].name = "a b".to_owned();
            body(m).outputs[0] = "a b".to_owned();
            description(m).output[0].name = "a b".to_owned();
        },
        "the name is not an identifier",
    ),
    (
        "empty name",
        |m| {
            op(m, "concat").outputs[0].name.clear();
            body(m).outputs[0].clear();
            description(m).output[0].name.clear();
        },
        "the name is not an identifier",
    ),
    (
        "one block",
        |m| {
            op(m, "cond").blocks.pop();
        },
        "expected 2 nested blocks, found 1",
    ),
    (
        "a block too much",
        |m| {
            let block = op(m, "cond").blocks[0].clone();
            op(m, "concat").blocks.push(block);
        },
        "expected 0 nested blocks, found 1",
    ),
    (
        "block without output",
        |m| op(m, "cond").blocks[1].outputs.clear(),
        "the first block returns",
    ),
    (
        "block of undefined output",
        |m| op(m, "cond").blocks[1].outputs[0] = "nobody".to_owned(),
        "output `nobody` is used before",
    ),
    (
        "nested without end",
        |m| {
            let mut deep = op(m, "cond").clone();
            for _ in 0..40 {
                let mut outer = deep.clone();
                outer.blocks[0].operations = vec![deep];
                deep = outer;
            }
            *op(m, "cond") = deep;
        },
        "blocks are nested deeper than 32 levels",
    ),
    (
        "no output",
        |m| body(m).outputs.clear(),
        "output `j`: the description has this feature, the function does not",
    ),
    (
        "undefined output",
        |m| body(m).outputs[0] = "nobody".to_owned(),
        "output `nobody` is used before",
    ),
    (
        "state as output",
        |m| body(m).outputs[0] = "cache".to_owned(),
        "output `cache`: the function has this feature, the description does not",
    ),
    (
        "write of another state",
        |m| {
            op(m, "write_state")
                .inputs
                .insert("data".to_owned(), names(&["y"]));
        },
        "`data`: expected the type of the state tensor<fp16, [3, 11]>, found tensor<fp32, [3, 4]>",
    ),
];
