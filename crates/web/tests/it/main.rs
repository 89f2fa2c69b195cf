//! What a page is answered, without a browser: `tests/oracle/check_web.py` asks the module itself
//! and compares with the command.

mod answers;
mod faults;
mod folder;
