//! Finds the lines on which a text declares functions and values, so that messages about a parsed
//! program can point to its source.

use std::collections::HashMap;

use super::lex::{Lexer, Token};

/// The lines, counted from 1, on which a text declares functions and values.
#[derive(Clone, Debug, Default)]
pub struct Lines {
    functions: HashMap<String, Function>,
}

#[derive(Clone, Debug)]
struct Function {
    line: usize,
    values: HashMap<String, usize>,
}

impl Lines {
    /// The line on which a function is declared.
    pub fn function(&self, name: &str) -> Option<usize> {
        Some(self.functions.get(name)?.line)
    }

    /// The line on which a function declares the result `name` of an op; inputs have no entry.
    pub fn value(&self, function: &str, name: &str) -> Option<usize> {
        self.functions.get(function)?.values.get(name).copied()
    }
}

/// Finds the lines of declarations in a text that [`parse`](super::parse()) accepts. In any other
/// text the search stops at the first invalid token.
pub fn lines(text: &str) -> Lines {
    let mut found = Lines::default();
    let mut lexer = Lexer::new(text);
    let (mut line, mut counted) = (1, 0);
    let mut function = None::<String>;
    // Brackets declare only inputs, which are not results of ops.
    let mut depth = 0usize;
    let mut word = None;
    while let Ok(token) = lexer.next() {
        line += text[counted..lexer.start].matches('\n').count();
        counted = lexer.start;
        match (token, word) {
            (Token::End, _) => break,
            (Token::Word(name), Some(("func", _))) => {
                function = Some(name.to_owned());
                found.functions.insert(
                    name.to_owned(),
                    Function {
                        line,
                        values: HashMap::new(),
                    },
                );
            }
            (Token::Mark('=' | ','), Some((name, at))) if depth == 0 => {
                if let Some(function) = function.as_ref().and_then(|f| found.functions.get_mut(f)) {
                    function.values.entry(name.to_owned()).or_insert(at);
                }
            }
            (Token::Mark('(' | '[' | '<'), _) => depth += 1,
            (Token::Mark(')' | ']' | '>'), _) => depth = depth.saturating_sub(1),
            _ => {}
        }
        word = if let Token::Word(name) = token {
            Some((name, line))
        } else {
            None
        };
    }
    found
}
