//! What the tokens of an encoder attend to, as numbers that are added to scores.

use thane_mil::program::ValueId;
use thane_mil::types::DType;

use super::Direction;
use super::positions::Positions;
use crate::error::ModelError;
use crate::graph::{Graph, Layout, ValueResult};

/// The score of a masked key: far below any real score, and finite in fp16.
const MASKED_SCORE: f32 = -1e4;

/// The additive masks of full-attention layers and of sliding-window layers. `valid` [batch,
/// tokens] is 1 for a token and 0 for padding.
pub(super) fn masks(
    g: &mut Graph,
    valid: ValueId,
    positions: Positions,
    direction: Direction,
    group: usize,
    window: Option<usize>,
) -> Result<(ValueId, Option<ValueId>), ModelError> {
    let one = g.float(1.0)?;
    let padding = g.sub(one, valid)?;
    let padding = g.expand_dims(padding, &[1, 2])?; // [batch, 1, 1, tokens]
    let is_half = g.spelling().float == DType::Fp16;
    let hidden = |g: &mut Graph, window| match is_half {
        true => hidden_in_half(g, positions, direction, window),
        false => hidden(g, positions, direction, window),
    };
    let full = match hidden(g, None)? {
        None => g.scale(padding, MASKED_SCORE)?,
        Some(later) => additive_mask(g, padding, later, group)?,
    };
    let Some(window) = window else {
        return Ok((full, None));
    };
    let sliding = match hidden(g, Some(window.min(positions.max_tokens())))? {
        None => full,
        Some(hidden) => additive_mask(g, padding, hidden, group)?,
    };
    Ok((full, Some(sliding)))
}

/// The keys that queries do not see, in booleans [tokens, tokens]: later ones, and those that are
/// `window` away or more. `None` if there are none.
fn hidden(
    g: &mut Graph,
    positions: Positions,
    direction: Direction,
    window: Option<usize>,
) -> Result<Option<ValueId>, ModelError> {
    if direction == Direction::Bidirectional && window.is_none() {
        return Ok(None);
    }
    let positions = positions.ints(g)?;
    let (queries, keys) = (
        g.expand_dims(positions, &[1])?,
        g.expand_dims(positions, &[0])?,
    );
    let later = match direction {
        Direction::Bidirectional => None,
        Direction::Causal => Some(g.op("greater", "later", [("x", keys), ("y", queries)])?),
    };
    let Some(window) = window else {
        return Ok(later);
    };
    let window = g.int(i32::try_from(window).unwrap_or(i32::MAX))?;
    let distance = g.sub(queries, keys)?;
    let distance = if direction == Direction::Bidirectional {
        g.op("abs", "distance", [("x", distance)])?
    } else {
        distance
    };
    let far = g.op("greater_equal", "far", [("x", distance), ("y", window)])?;
    Ok(Some(match later {
        None => far,
        Some(later) => g.op("logical_or", "hidden", [("x", far), ("y", later)])?,
    }))
}

/// The same in fp16, 1 for a key that is not seen and 0 for others, without integers.
fn hidden_in_half(
    g: &mut Graph,
    positions: Positions,
    direction: Direction,
    window: Option<usize>,
) -> Result<Option<ValueId>, ModelError> {
    let reach = window.map(|window| window as i64 - 1);
    if direction == Direction::Bidirectional && reach.is_none() {
        return Ok(None);
    }
    let at = positions.line(g, 0)?;
    let mut hidden = match (direction, reach) {
        (Direction::Bidirectional, Some(reach)) => {
            let ahead = positions.line(g, reach)?;
            at.is_beyond(g, &ahead)?
        }
        _ => at.is_beyond(g, &at)?,
    };
    if let Some(reach) = reach {
        let behind = positions.line(g, -reach)?;
        let far = behind.of_query_is_beyond(g, &at)?;
        hidden = g.op("maximum", "hidden", [("x", hidden), ("y", far)])?;
    }
    Ok(Some(hidden))
}

/// The additive mask of padding and of the keys in `hidden` [tokens, tokens], with one row for each
/// query that shares a key head.
fn additive_mask(g: &mut Graph, padding: ValueId, hidden: ValueId, group: usize) -> ValueResult {
    let hidden = g.cast(hidden, g.spelling().float)?;
    // [batch, 1, tokens, tokens]
    let both = g.op("maximum", "hidden", [("x", padding), ("y", hidden)])?;
    let mask = g.scale(both, MASKED_SCORE)?;
    if g.spelling().layout == Layout::Channels || group == 1 {
        return Ok(mask);
    }
    let reps = g.ints(&[1, 1, group as i32, 1])?;
    g.op("tile", "mask", [("x", mask), ("reps", reps)])
}
