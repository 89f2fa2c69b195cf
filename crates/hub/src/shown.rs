//! Text that is safe to show: addresses without passwords, and text of others on one line.

/// An address without the user name and the password in it: `http://user:password@host/path`
/// becomes `http://***@host/path`. The address need not be valid.
///
/// ```
/// assert_eq!(thane_hub::shown_url("https://me:secret@h:80/a@b"), "https://***@h:80/a@b");
/// ```
pub fn shown_url(url: &str) -> String {
    let (scheme, rest) = match url.split_once("://") {
        Some((scheme, rest)) => (&url[..scheme.len() + "://".len()], rest),
        None => ("", url),
    };
    let authority = &rest[..rest.find(['/', '?', '#']).unwrap_or(rest.len())];
    let end = match authority.rfind('@') {
        // A password with a slash that is not escaped ends the authority.
        None if !is_host(authority) => rest.rfind('@'),
        end => end,
    };
    end.map_or_else(
        || url.to_owned(),
        |end| format!("{scheme}***{}", &rest[end..]),
    )
}

/// Whether text can be a host, with or without a port.
fn is_host(text: &str) -> bool {
    let port = match text.strip_prefix('[') {
        Some(address) => address.split_once(']').map_or("]", |(_, port)| port),
        None => &text[text.find(':').unwrap_or(text.len())..],
    };
    let is_port = |port: &str| port.bytes().all(|b| b.is_ascii_digit());
    let is_plain = !text.contains(|c: char| c.is_whitespace() || c.is_control());
    is_plain && (port.is_empty() || port.strip_prefix(':').is_some_and(is_port))
}

/// `text` on one line: line breaks, other control characters and marks that reorder letters become
/// escapes such as `\n`, so that text of a client or a server looks like no line but its own.
///
/// ```
/// assert_eq!(thane_hub::one_line("a\nb"), "a\\nb");
/// ```
pub fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\u{61c}' | '\u{200e}' | '\u{200f}' => line.extend(c.escape_unicode()),
            '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => line.extend(c.escape_unicode()),
            c if c.is_control() => line.extend(c.escape_default()),
            c => line.push(c),
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_shown_without_passwords() {
        for (url, shown) in [
            ("https://huggingface.co", "https://huggingface.co"),
            ("http://h/o/n@main?x=a@b", "http://h/o/n@main?x=a@b"),
            ("http://token@h", "http://***@h"),
            ("http://u:p@h:80/v1", "http://***@h:80/v1"),
            ("http://u:p@ss@[::1]:80", "http://***@[::1]:80"),
            ("http://[::1]/a@b", "http://[::1]/a@b"),
            ("http://h:80/a@b", "http://h:80/a@b"),
            ("http://u:p/ss@h", "http://***@h"),
            ("http://u:p?s#s@h/x", "http://***@h/x"),
            ("u:p@localhost:4318", "***@localhost:4318"),
            ("localhost:4318", "localhost:4318"),
            ("http://u:p w@h", "http://***@h"),
            ("http://u:p://x@h", "http://***@h"),
            ("http://u:(p)'@h:1", "http://***@h:1"),
            ("http://[::1]:80/a@b", "http://[::1]:80/a@b"),
            ("http://ü:pä@hé", "http://***@hé"),
            ("://", "://"),
            ("", ""),
        ] {
            assert_eq!(shown_url(url), shown, "{url}");
        }
    }

    #[test]
    fn text_of_others_stays_on_its_line() {
        for (text, line) in [
            ("hf:org/näme \u{1f642} \\", "hf:org/näme \u{1f642} \\"),
            ("x\nthane: forged\r\t", "x\\nthane: forged\\r\\t"),
            ("\u{1b}[2J\u{85}\u{7f}\0", "\\u{1b}[2J\\u{85}\\u{7f}\\u{0}"),
            (
                "a\u{2028}b\u{202e}c\u{200f}",
                "a\\u{2028}b\\u{202e}c\\u{200f}",
            ),
        ] {
            assert_eq!(one_line(text), line);
        }
    }
}
