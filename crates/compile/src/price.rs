//! Choosing between forms of a function that compute the same, by their predicted price.
//!
//! This crate knows no chips: whoever does implements [`Price`], as `thane-audit` does with its
//! latency model.

use thane_mil::program::{Function, Program};

/// The predicted time of one call.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Expected nanoseconds.
    pub ns: f64,
    /// Nanoseconds between which about 80 % of calls lie.
    pub interval_ns: (f64, f64),
}

/// Predicts what a call costs on the target that the implementor knows.
pub trait Price {
    /// The price of one call of `function`, which would stand in `program` but need not be one of
    /// its functions yet.
    fn price(&self, program: &Program, function: &Function) -> Cost;
}

/// Sort forms of one function by price, the cheapest first; forms of equal price keep their order.
pub fn cheapest_first<T>(
    forms: Vec<T>,
    function: impl Fn(&T) -> &Function,
    program: &Program,
    price: &dyn Price,
) -> Vec<T> {
    if forms.len() < 2 {
        return forms;
    }
    let cost = |form: T| (price.price(program, function(&form)).ns, form);
    let mut priced: Vec<(f64, T)> = forms.into_iter().map(cost).collect();
    priced.sort_by(|a, b| a.0.total_cmp(&b.0));
    priced.into_iter().map(|(_, form)| form).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use thane_mil::build::FunctionBuilder;
    use thane_mil::opset::Opset;

    /// The price of a function is the length of its name.
    struct Name;

    impl Price for Name {
        fn price(&self, _: &Program, function: &Function) -> Cost {
            let ns = function.name.len() as f64;
            Cost {
                ns,
                interval_ns: (ns, ns),
            }
        }
    }

    #[test]
    fn the_cheapest_form_comes_first_and_ties_keep_their_order() {
        let named = |name: &str| FunctionBuilder::new(name, Opset::CoreMl8).finish(&[]);
        let forms = ["ccc", "a", "bb", "z"].map(named).to_vec();
        let program = Program::new(forms.clone());
        let sorted = cheapest_first(forms, |f| f, &program, &Name);
        let names: Vec<&str> = sorted.iter().map(|f| f.name.as_str()).collect();
        assert_eq!(names, ["a", "z", "bb", "ccc"]);
    }
}
