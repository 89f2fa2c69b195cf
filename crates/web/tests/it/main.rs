//! What a page is answered, without a browser: `tests/oracle/check_web.py` asks the module itself
//! and compares with the command.
#![allow(clippy::unwrap_used)]

mod answers;
mod faults;
mod folder;
