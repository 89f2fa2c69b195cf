//! Measured times of calls by length, continued by a prediction.

/// Measured times.
#[derive(Clone, Debug, PartialEq)]
pub struct Times {
    /// Lengths and milliseconds, in rising order.
    points: Vec<(usize, f64)>,
}

/// Why measured times cannot be used.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum TimesError {
    /// One point has no slope.
    #[error("expected at least two lengths with their times, found {found}")]
    TooFew {
        /// Number of points.
        found: usize,
    },
    /// A length or time is 0 or not finite.
    #[error(
        "length {length} takes {ms} ms: a length is above 0, and a time a finite number above 0"
    )]
    Unusable {
        /// Its length.
        length: usize,
        /// Its time.
        ms: f64,
    },
    /// A length has two times.
    #[error("length {length} has two times")]
    Twice {
        /// The length.
        length: usize,
    },
    /// A longer call takes less time.
    #[error("length {length} takes {ms} ms, less than length {shorter}: leave one of them out")]
    Falling {
        /// The longer length.
        length: usize,
        /// Its time.
        ms: f64,
        /// The shorter length.
        shorter: usize,
    },
}

impl Times {
    /// Lengths and their milliseconds, in any order.
    pub fn new(mut points: Vec<(usize, f64)>) -> Result<Self, TimesError> {
        if let Some(&(length, ms)) = points
            .iter()
            .find(|(length, ms)| *length == 0 || !ms.is_finite() || *ms <= 0.0)
        {
            return Err(TimesError::Unusable { length, ms });
        }
        points.sort_by_key(|(length, _)| *length);
        for pair in points.windows(2) {
            let ((shorter, before), (length, ms)) = (pair[0], pair[1]);
            if shorter == length {
                return Err(TimesError::Twice { length });
            }
            if ms < before {
                return Err(TimesError::Falling {
                    length,
                    ms,
                    shorter,
                });
            }
        }
        if points.len() < 2 {
            return Err(TimesError::TooFew {
                found: points.len(),
            });
        }
        Ok(Self { points })
    }

    /// The time of a length: on the line between its neighbors; outside of what was measured,
    /// `model` scaled so that it meets the nearest point.
    pub fn ms(&self, length: usize, model: &dyn Fn(usize) -> f64) -> f64 {
        let scaled = |(at, ms): (usize, f64)| ms * model(length) / model(at);
        let next = self.points.partition_point(|(at, _)| *at < length);
        match (
            next.checked_sub(1).map(|i| self.points[i]),
            self.points.get(next).copied(),
        ) {
            (_, Some((at, ms))) if at == length => ms,
            (Some((a, from)), Some((b, to))) => {
                from + (to - from) * (length - a) as f64 / (b - a) as f64
            }
            (Some(last), None) => scaled(last),
            (None, Some(first)) => scaled(first),
            (None, None) => model(length),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_joined_by_lines_and_continued_by_the_model() {
        let times = Times::new(vec![(256, 30.0), (128, 10.0)]).unwrap();
        let square = |n: usize| (n * n) as f64;
        for (length, ms) in [
            (128, 10.0),
            (256, 30.0),
            (192, 20.0),
            (160, 15.0),
            (512, 120.0),
            (64, 2.5),
        ] {
            assert_eq!(times.ms(length, &square), ms, "{length}");
        }
        let faults: [(&[(usize, f64)], &str); 6] = [
            (
                &[],
                "expected at least two lengths with their times, found 0",
            ),
            (&[(128, 14.0)], "their times, found 1"),
            (&[(128, 14.0), (128, 15.0)], "length 128 has two times"),
            (
                &[(128, 14.0), (256, 13.0)],
                "length 256 takes 13 ms, less than length 128",
            ),
            (&[(0, 14.0), (256, 13.0)], "length 0 takes 14 ms"),
            (&[(8, f64::NAN), (256, 13.0)], "length 8 takes NaN ms"),
        ];
        for (points, text) in faults {
            let said = Times::new(points.to_vec()).unwrap_err().to_string();
            assert!(said.contains(text), "{said}");
        }
    }
}
