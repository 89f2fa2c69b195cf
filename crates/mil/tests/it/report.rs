//! What a compiled model says of itself.

use thane_mil::package::base64;

/// Expected values: RFC 4648, section 10.
#[test]
fn base64_equals_the_standard() {
    for (text, coded) in [
        ("", ""),
        ("f", "Zg=="),
        ("fo", "Zm8="),
        ("foo", "Zm9v"),
        ("foobar", "Zm9vYmFy"),
    ] {
        assert_eq!(base64(text.as_bytes()), coded);
    }
}
