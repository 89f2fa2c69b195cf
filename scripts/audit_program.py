"""Programs of any number of ops as MIL text, for measuring the audit: layers of attention and a gated network."""


def layer(i, width, tokens, weight):
    """The ops of a layer, and the name of what it gives."""
    heads, dim = width // 64, 64
    wide, x = f"tensor<fp16, [1, {width}, 1, {tokens}]>", f"x{i}"
    split, out = f"tensor<fp16, [1, {heads}, {dim}, {tokens}]>", []
    scores = f"tensor<fp16, [1, {heads}, {tokens}, {tokens}]>"
    shape = f"tensor<int32, [4]>([1, {heads}, {dim}, {tokens}])"
    back = f"tensor<int32, [4]>([1, {width}, 1, {tokens}])"

    def op(ty, name, text):
        out.append(f"        {ty} layers_{i}_{name} = {text}[name = string(\"layers_{i}_{name}\")];")
        return f"layers_{i}_{name}"

    def product(name, value):
        out.append(weight(f"layers_{i}_{name}_weight", width))
        return op(wide, name, f"conv(weight = layers_{i}_{name}_weight, x = {value})")

    norm = op(wide, "norm", f"layer_norm(axes = tensor<int32, [1]>([1]), epsilon = fp16(0x1p-14), x = {x})")
    q, k, v = (product(f"self_attn_{n}_proj", norm) for n in "qkv")
    q, k, v = (op(split, f"{n}_heads", f"reshape(shape = {shape}, x = {value})") for n, value in zip("qkv", (q, k, v)))
    flags = "transpose_x = bool(true), transpose_y = bool(false)"
    attn = op(scores, "scores", f"matmul({flags}, x = {q}, y = {k})")
    attn = op(scores, "softmax", f"softmax(axis = int32(-1), x = {attn})")
    flags = "transpose_x = bool(false), transpose_y = bool(true)"
    mixed = op(split, "values", f"matmul({flags}, x = {v}, y = {attn})")
    mixed = product("self_attn_o_proj", op(wide, "joined", f"reshape(shape = {back}, x = {mixed})"))
    residual = op(wide, "residual", f"add(x = {x}, y = {mixed})")
    gate = op(wide, "silu", f"silu(x = {product('mlp_gate_proj', residual)})")
    gated = op(wide, "gated", f"mul(x = {gate}, y = {product('mlp_up_proj', residual)})")
    down = product("mlp_down_proj", gated)
    out.append(f"        {wide} x{i + 1} = add(x = {residual}, y = {down});")
    return out


OPS_A_LAYER = 19


def program(n_ops, width=512, tokens=256, weight=None):
    """The text of a program of at least so many ops that compute."""
    n = -(-n_ops // OPS_A_LAYER)
    blob = 'BLOBFILE(path = string("@model_path/weights/weight.bin"), offset = uint64(64))'
    ty = f"tensor<fp16, [{width}, {width}, 1, 1]>"
    weight = weight or (lambda name, _: f"        {ty} {name} = const()[val = {ty}({blob})];")
    ops = [line for i in range(n) for line in layer(i, width, tokens, weight)]
    head = f"    func main<ios18>(tensor<fp16, [1, {width}, 1, {tokens}]> x0) {{"
    return "\n".join(["program(1.3)", "{", head, *ops, f"    }} -> (x{n});", "}"]) + "\n"
