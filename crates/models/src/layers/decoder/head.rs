//! What a function of fixed length gives of a token's logits.

use std::ops::Range;

use thane_calls::Head;
use thane_mil::program::ValueId;

use crate::error::ModelError;
use crate::graph::{Graph, ValueResult};

/// The outputs of a function by name. `logits` are those of `rows` of the output head,
/// [1, rows, 1, n]; with a head on the host, they are the final hidden states [1, hidden, 1, n].
///
/// | head | outputs |
/// |---|---|
/// | `Logits` | `logits` [1, n, rows] |
/// | `Greatest(k)` | `top_logits` [1, n, k] and `top_tokens` int32 [1, n, k] |
/// | `Host` | `final_hidden_states` [1, hidden, 1, n] |
pub fn outputs(
    g: &mut Graph,
    head: Head,
    (logits, rows, n): (ValueId, &Range<usize>, usize),
) -> Result<Vec<(String, ValueId)>, ModelError> {
    let n = n as i32;
    // [1, x, 1, n] as [1, n, x].
    let by_token = |g: &mut Graph, x: ValueId| -> ValueResult {
        let columns = if n == 1 {
            x
        } else {
            g.transpose(x, &[0, 3, 2, 1])?
        };
        g.reshape(columns, &[1, n, -1])
    };
    let [values, tokens] = match head {
        Head::Logits => return Ok(vec![("logits".to_owned(), by_token(g, logits)?)]),
        Head::Host(()) => return Ok(vec![("final_hidden_states".to_owned(), logits)]),
        // Along the channels, so that the maximum needs no transposed copy of the logits.
        Head::Greatest(1) => {
            let greatest = g.reduce("reduce_max", logits, 1)?; // [1, 1, 1, n]
            let at = g.argmax(logits, 1)?;
            [g.reshape(greatest, &[1, n, 1])?, g.reshape(at, &[1, n, 1])?]
        }
        Head::Greatest(k) => {
            let k = i32::try_from(k.min(rows.len())).unwrap_or(i32::MAX);
            let rows = by_token(g, logits)?;
            g.top(rows, k)?
        }
    };
    // Tokens of a part of the vocabulary are counted from its start.
    let tokens = if rows.start == 0 {
        tokens
    } else {
        let first = g.int(i32::try_from(rows.start).unwrap_or(i32::MAX))?;
        g.add(tokens, first)?
    };
    Ok(vec![
        ("top_logits".to_owned(), values),
        ("top_tokens".to_owned(), tokens),
    ])
}
