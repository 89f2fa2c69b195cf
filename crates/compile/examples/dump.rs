use thane_compile::audit::labelled::measurements as m;
fn main() {
    let text =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../data/audit/ane_measurements.csv")).unwrap();
    let rows = m::load(&text).unwrap();
    let t = std::time::Instant::now();
    let s = m::score(&rows);
    println!("{:?}", t.elapsed());
    for r in &s.scored {
        let p = r.latency.parts;
        println!(
            "{:>4} {:9} {:5} {:+6.1}% meas {:9.4} pred {:9.4} [{:.3} {:.3}] {} c{:.3} w{:.3} e{:.3} a{:.3} d{:.3} h{:.3} | {} | {} | {} | {} | {}",
            r.row.id,
            r.row.split,
            r.row.kind,
            100.0 * (r.predicted_ms / r.measured_ms - 1.0),
            r.measured_ms,
            r.predicted_ms,
            r.interval_ms.0,
            r.interval_ms.1,
            if r.is_inside() { "in" } else { "OUT" },
            p.compute * 1e3,
            p.weights * 1e3,
            p.elements * 1e3,
            p.activations * 1e3,
            p.dispatch * 1e3,
            p.host * 1e3,
            r.chip,
            r.row.path,
            r.row.model,
            r.row.shape,
            r.row.dtype
        );
    }
    for (r, why) in &s.inexpressible {
        println!("-- {} {} {} | {} | {} | {} : {}", r.id, r.split, r.kind, r.model, r.shape, r.dtype, why);
    }
    let show = |name: &str, f: &dyn Fn(&m::Scored) -> bool| {
        if let Some(x) = m::summary(s.scored.iter().filter(|r| f(r))) {
            println!(
                "{name:40} n {:3} median {:.3} within {:.2} worst {:.2} inside {:.2}",
                x.n, x.median, x.within_quarter, x.worst, x.inside
            );
        }
    };
    let og = |r: &m::Scored| ["op", "graph", "layer"].contains(&r.row.kind.as_str());
    show("all", &|_| true);
    show("seen", &|r| r.row.is_seen());
    show("unused", &|r| !r.row.is_seen());
    show("unused op/graph/layer", &|r| !r.row.is_seen() && og(r));
    show("seen op/graph/layer", &|r| r.row.is_seen() && og(r));
    show("unused llm decode", &|r| !r.row.is_seen() && r.row.kind == "llm" && r.row.model.contains("decode"));
    for split in ["fit", "check", "constants"] {
        show(split, &|r| r.row.split == split);
    }
    for chip in ["m1-max", "m3-max", "m4", "m5", "m5-pro", "m5-max", "m6", "a19-pro"] {
        show(&format!("unused {chip}"), &|r| !r.row.is_seen() && r.chip == chip);
    }
}
