//! The memory of a parsed program, counted from its text before it is parsed.
//!
//! A text of a few bytes can become hundreds: an op has a slot for each parameter that it may have,
//! and a name is kept by its value, by its op and in the table of names. So the walk reads the
//! tokens that the parser will read, without the grammar, and counts what the parser allocates for
//! each. Where it cannot tell, it counts too much. It ends where the text has no tokens, as the
//! parser does.

use super::lex::{Lexer, Token};
use crate::footprint::{list, piece, table};
use crate::opset::{self, Accepts};
use crate::program::{Arg, Function, Op, OpId, Value, ValueId};
use crate::types::{DType, Type};
use crate::watch::Watch;

/// Most bytes of what a mark of a nested type or literal, of an attribute of a function, or of a
/// nested block begins or ends: an element with its own memory, in a list that grows.
const OF_MARK: usize = 320;
/// Bytes of an item of a list of arguments while it is being read, in a list that grows: the old
/// list and the new one are there at once.
const OF_ITEM: usize = 3 * (size_of::<(Type, &str)>() + size_of::<(&str, Arg)>());
/// Bytes of the owner of the bytes of a literal, with its counts.
const OF_OWNER: usize = 2 * size_of::<usize>() + size_of::<Vec<u8>>();
/// Bytes of an integer of a literal while an op looks at it: as it is, and as `i64`.
const OF_INT: usize = 8 + size_of::<i64>();
/// Names up to this length are those of parameters, which are not kept.
const PARAMETER: usize = 32;

/// At least as many bytes as parsing a text allocates at once, the text apart; anything where the
/// watch ends the count.
pub(crate) fn parsed_bytes(text: &str, watch: &Watch<'_>) -> usize {
    let mut lexer = Lexer::new(text);
    let mut walk = Walk::default();
    let mut before = Token::End;
    while let Ok(token) = lexer.next() {
        if token == Token::End || watch.step() {
            break;
        }
        walk.take(before, token);
        before = token;
    }
    walk.sum()
}

/// Sums so far, and where the walk is.
#[derive(Default)]
struct Walk {
    kept: usize,
    n_functions: usize,
    function: OfFunction,
    /// Most bytes that are needed for a time: by a list that grows, by the names of a function, by
    /// a statement, and by the name of an op.
    growth: usize,
    scope: usize,
    statement: usize,
    longest: usize,
    /// Open braces: two in the body of a function.
    braces: usize,
    /// Open brackets of types.
    angles: usize,
    /// Open parentheses of a literal.
    literals: usize,
    /// Bits of an element of the last type.
    bits: usize,
    n_elements: usize,
    n_dims: usize,
    n_items: usize,
    n_ints: usize,
    /// Whether a type of this statement has types in it.
    is_nested: bool,
    /// Whether values are inputs, whose types are kept as they were read.
    is_input: bool,
    /// The length of the name of the first result, where there are several.
    first_len: usize,
    has_several: bool,
}

#[derive(Default)]
struct OfFunction {
    n_values: usize,
    n_ops: usize,
    n_names: usize,
    has_blocks: bool,
}

impl Walk {
    fn take(&mut self, before: Token<'_>, token: Token<'_>) {
        match token {
            Token::Word(word) => self.word(before, word),
            Token::Quoted(text) => self.kept += piece(text.len()),
            Token::Mark(mark) => self.mark(before, mark),
            Token::Arrow | Token::End => {}
        }
    }

    fn word(&mut self, before: Token<'_>, word: &str) {
        if word == "func" && matches!(before, Token::Mark(';' | '{')) {
            self.end_function();
        }
        if matches!(word, "func" | "block") {
            (self.is_input, self.is_nested) = (true, false);
            self.kept += OF_MARK;
            self.function.has_blocks |= word == "block";
        }
        if let Some(dtype) = DType::from_name(word) {
            self.bits = dtype.bits();
        }
        self.is_nested |= matches!(word, "list" | "dict" | "tuple" | "state");
        if self.literals > 0 && self.angles == 0 {
            self.n_elements += 1;
            return;
        }
        if matches!(before, Token::Word(_) | Token::Mark('>')) && self.angles == 0 {
            self.name(word);
        }
    }

    /// A name that is declared: of a value, in the table of names, and of the op. The table has the
    /// name that the op suggests too, which is another one where there are several results, or
    /// where characters are replaced.
    fn name(&mut self, name: &str) {
        self.function.n_values += 1;
        self.function.n_names += 1;
        self.kept += 2 * piece(name.len());
        self.longest = self.longest.max(name.len());
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        if !name.bytes().all(is_plain) {
            self.suggested(name.len());
        }
        if self.first_len == 0 {
            self.first_len = name.len();
        }
    }

    fn suggested(&mut self, len: usize) {
        const NUMBERS: usize = 2 * 11;
        // With one number, and with another one where that name is taken.
        self.function.n_names += 2;
        self.kept += 2 * piece(len + NUMBERS);
    }

    fn mark(&mut self, before: Token<'_>, mark: char) {
        let is_outside = self.braces < 2;
        if self.is_nested || is_outside && matches!(mark, ',' | '=') {
            self.kept += OF_MARK;
        }
        let before = match before {
            Token::Word(word) => Some(word),
            _ => None,
        };
        match mark {
            '<' => self.angles += 1,
            '>' => self.angles = self.angles.saturating_sub(1),
            '[' => self.n_dims = 1,
            ']' if self.angles > 0 => self.shape(),
            '(' => self.open(before),
            ')' => self.close(),
            ',' if self.angles > 0 => self.n_dims += 1,
            // Elements of tensors have no list.
            ',' if self.literals > 0 && !self.is_nested => {}
            ',' => self.item(),
            '=' => self.equals(before),
            '{' => {
                self.braces += 1;
                self.is_input = false;
            }
            '}' => self.braces = self.braces.saturating_sub(1),
            ';' => self.end_statement(),
            _ => {}
        }
    }

    /// A type of known rank: that of a value, which is inferred, or of a literal.
    fn shape(&mut self) {
        let n = match self.is_input {
            true => self.n_dims.next_power_of_two().max(4),
            false => self.n_dims,
        };
        self.kept += piece(n * size_of::<crate::types::Dim>());
    }

    fn open(&mut self, before: Option<&str>) {
        let is_scalar = before.is_some_and(|word| DType::from_name(word).is_some());
        if self.literals > 0 || is_scalar || before.is_none() && self.bits > 0 {
            self.literals += 1;
            return;
        }
        let Some(word) = before else {
            // The values of a parameter that takes several.
            self.kept += piece(4 * size_of::<ValueId>());
            return;
        };
        let rows = opset::rows(word);
        let Some(def) = rows.max_by_key(|def| def.params.len()) else {
            return;
        };
        self.function.n_ops += 1;
        self.kept += piece(def.params.len() * size_of::<Option<Arg>>());
        // The results, of which each has at least a name of its own, and lists of one value.
        self.kept += piece(size_of::<ValueId>());
        let of_tensors = def.params.iter().filter(|p| p.accepts == Accepts::Tensors);
        self.kept += of_tensors.count() * piece(size_of::<ValueId>());
        self.bits = 0;
    }

    fn close(&mut self) {
        if self.literals > 0 {
            self.literals -= 1;
            self.end_literal();
        }
        if self.literals == 0 {
            self.bits = 0;
        }
    }

    /// The bytes of a tensor, which are pushed one by one, and their owner.
    fn end_literal(&mut self) {
        let n = std::mem::take(&mut self.n_elements);
        if n == 0 {
            return;
        }
        let n_bytes = (n * self.bits).div_ceil(8).next_power_of_two().max(8);
        self.kept += piece(n_bytes) + piece(OF_OWNER);
        self.growth = self.growth.max(n_bytes / 2);
        self.n_ints = self.n_ints.max(n);
    }

    /// An item of a list of values, arguments, attributes or results.
    fn item(&mut self) {
        self.n_items += 1;
        self.kept += 2 * size_of::<ValueId>();
        if self.first_len > 0 {
            self.has_several = true;
            self.suggested(self.first_len);
        }
    }

    fn equals(&mut self, before: Option<&str>) {
        // Results end.
        if std::mem::take(&mut self.has_several) {
            self.suggested(self.first_len);
        }
        let has_results = self.first_len > 0;
        (self.first_len, self.bits) = (0, 0);
        self.n_items += 1;
        if let Some(name) = before.filter(|name| !has_results && name.len() > PARAMETER) {
            self.kept += piece(name.len());
        }
    }

    fn end_statement(&mut self) {
        let n_items = std::mem::take(&mut self.n_items);
        let n_ints = std::mem::take(&mut self.n_ints);
        let needed = n_items * OF_ITEM + n_ints * OF_INT;
        self.statement = self.statement.max(needed);
        self.is_nested = false;
        (self.first_len, self.has_several, self.bits) = (0, false, 0);
    }

    fn end_function(&mut self) {
        let of = std::mem::take(&mut self.function);
        let ops = list(of.n_ops, size_of::<Op>());
        let values = list(of.n_values, size_of::<Value>());
        let names = table(of.n_names, size_of::<(String, u32)>());
        self.kept += ops + values + names + list(of.n_ops, size_of::<OpId>());
        let largest = ops.max(values).max(names);
        self.growth = self.growth.max(largest / 2);
        let visible = table(of.n_values, size_of::<(&str, ValueId)>());
        let local = list(of.n_values, size_of::<&str>());
        let hidden = match of.has_blocks {
            true => table(of.n_values, size_of::<&str>()),
            false => 0,
        };
        // One list or table grows at a time.
        self.growth = self.growth.max(visible / 2);
        self.scope = self.scope.max(visible + local + hidden);
        self.n_functions += 1;
        self.end_statement();
    }

    fn sum(mut self) -> usize {
        self.end_function();
        let functions = list(self.n_functions, size_of::<Function>());
        let names = table(self.n_functions, size_of::<&str>());
        let growth = self.growth.max(functions / 2);
        // What the op is called at first, and what is looked up.
        const COPIES: usize = 4;
        let naming = COPIES * self.longest;
        self.kept + functions + names + growth + self.scope + self.statement + naming
    }
}
