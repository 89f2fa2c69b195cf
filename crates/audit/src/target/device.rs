//! Names of devices, for users who know what they hold and not its chip.

use super::{Chip, System};

/// A device, or devices with one chip and one name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    /// Name, as users write it: words joined by `-`.
    pub name: &'static str,
    /// Name of its chip.
    chip: &'static str,
}

const fn device(name: &'static str, chip: &'static str) -> Device {
    Device { name, chip }
}

/// Devices with a Neural Engine and a chip of the tables. Source: Apple's specifications of each,
/// and for iPhone 18 Pro coreai-model-zoo, where it gives its engine's name. Where Apple sells one
/// name with several chips, the chip is a part of the name.
pub static DEVICES: &[Device] = &[
    device("iphone-12", "a14"),
    device("iphone-12-mini", "a14"),
    device("iphone-12-pro", "a14"),
    device("iphone-12-pro-max", "a14"),
    device("iphone-13", "a15"),
    device("iphone-13-mini", "a15"),
    device("iphone-13-pro", "a15"),
    device("iphone-13-pro-max", "a15"),
    device("iphone-se-3", "a15"),
    device("iphone-14", "a15"),
    device("iphone-14-plus", "a15"),
    device("iphone-14-pro", "a16"),
    device("iphone-14-pro-max", "a16"),
    device("iphone-15", "a16"),
    device("iphone-15-plus", "a16"),
    device("iphone-15-pro", "a17-pro"),
    device("iphone-15-pro-max", "a17-pro"),
    device("iphone-16", "a18"),
    device("iphone-16-plus", "a18"),
    device("iphone-16e", "a18"),
    device("iphone-16-pro", "a18-pro"),
    device("iphone-16-pro-max", "a18-pro"),
    device("iphone-17", "a19"),
    device("iphone-air", "a19-pro"),
    device("iphone-17-pro", "a19-pro"),
    device("iphone-17-pro-max", "a19-pro"),
    device("iphone-18-pro", "a20-pro"),
    device("ipad-10", "a14"),
    device("ipad-a16", "a16"),
    device("ipad-mini-6", "a15"),
    device("ipad-mini-a17-pro", "a17-pro"),
    device("ipad-air-4", "a14"),
    device("ipad-air-5", "m1"),
    device("ipad-air-m2", "m2"),
    device("ipad-air-m3", "m3"),
    device("ipad-pro-m1", "m1"),
    device("ipad-pro-m2", "m2"),
    device("ipad-pro-m4", "m4"),
    device("ipad-pro-m5", "m5"),
    device("macbook-air-m1", "m1"),
    device("macbook-air-m2", "m2"),
    device("macbook-air-m3", "m3"),
    device("macbook-air-m4", "m4"),
    device("macbook-pro-m1", "m1"),
    device("macbook-pro-m1-pro", "m1-pro"),
    device("macbook-pro-m1-max", "m1-max"),
    device("macbook-pro-m2", "m2"),
    device("macbook-pro-m2-pro", "m2-pro"),
    device("macbook-pro-m2-max", "m2-max"),
    device("macbook-pro-m3", "m3"),
    device("macbook-pro-m3-pro", "m3-pro"),
    device("macbook-pro-m3-max", "m3-max"),
    device("macbook-pro-m4", "m4"),
    device("macbook-pro-m4-pro", "m4-pro"),
    device("macbook-pro-m4-max", "m4-max"),
    device("macbook-pro-m5", "m5"),
    device("mac-mini-m1", "m1"),
    device("mac-mini-m2", "m2"),
    device("mac-mini-m2-pro", "m2-pro"),
    device("mac-mini-m4", "m4"),
    device("mac-mini-m4-pro", "m4-pro"),
    device("mac-studio-m1-max", "m1-max"),
    device("mac-studio-m1-ultra", "m1-ultra"),
    device("mac-studio-m2-max", "m2-max"),
    device("mac-studio-m2-ultra", "m2-ultra"),
    device("mac-studio-m3-ultra", "m3-ultra"),
    device("mac-studio-m4-max", "m4-max"),
    device("mac-pro-m2-ultra", "m2-ultra"),
    device("imac-m1", "m1"),
    device("imac-m3", "m3"),
    device("imac-m4", "m4"),
];

impl Device {
    /// The device of a name, in capitals or not: letters and digits count, so that `iPhone 17 Pro`,
    /// `iphone17pro` and `iphone-17-pro` are one.
    pub fn from_name(name: &str) -> Option<&'static Self> {
        let name = plain(name);
        DEVICES.iter().find(|device| plain(device.name) == name)
    }

    /// Its chip.
    pub fn chip(&self) -> Option<&'static Chip> {
        Chip::from_name(self.chip)
    }

    /// The system that it runs.
    pub fn system(&self) -> System {
        match self.name {
            name if name.starts_with("iphone") => System::Phone,
            name if name.starts_with("ipad") => System::Pad,
            _ => System::Mac,
        }
    }
}

/// Letters and digits of a name.
fn plain(name: &str) -> String {
    let letters = name.chars().filter(char::is_ascii_alphanumeric);
    letters.map(|c| c.to_ascii_lowercase()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_device_has_a_chip_that_runs_its_system() {
        let mut names: Vec<String> = DEVICES.iter().map(|device| plain(device.name)).collect();
        for device in DEVICES {
            let chip = device.chip().expect(device.name);
            assert!(chip.runs(device.system()), "{}", device.name);
            // A name with a chip in it is of that chip.
            let named = Chip::from_marketing(device.name);
            assert!(named.is_none_or(|named| named == chip), "{}", device.name);
            assert!(Chip::from_name(device.name).is_none(), "{}", device.name);
        }
        names.sort();
        names.dedup();
        assert_eq!(names.len(), DEVICES.len());
    }

    #[test]
    fn devices_are_found_as_people_write_them() {
        let cases = [
            ("iphone17", "a19"),
            ("iPhone 17 Pro", "a19-pro"),
            ("iphone-17-pro-max", "a19-pro"),
            ("IPHONE_SE_3", "a15"),
            ("iPad Pro (M4)", "m4"),
            ("macbook-air-m4", "m4"),
            ("MacBook Pro M3 Max", "m3-max"),
        ];
        for (text, chip) in cases {
            let found = Device::from_name(text).and_then(Device::chip);
            assert_eq!(found.map(|chip| chip.name), Some(chip), "{text}");
        }
        for text in ["", "iphone", "iphone-11", "macbook-air", "mac-studio"] {
            assert_eq!(Device::from_name(text), None, "{text}");
        }
    }
}
