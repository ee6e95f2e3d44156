//! Access modes and volume modes of volumes and claims.

use std::fmt;

/// Access modes, in the order in which upstream lists them.
const NAMES: [(&str, &str); 4] =
    [("ReadWriteOnce", "RWO"), ("ReadOnlyMany", "ROX"), ("ReadWriteMany", "RWX"), ("ReadWriteOncePod", "RWOP")];

/// A set of access modes. Unknown modes are not in the set.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct AccessModes(u8);

impl AccessModes {
    /// `ReadWriteOnce`
    pub const READ_WRITE_ONCE: Self = Self(1);
    /// `ReadOnlyMany`
    pub const READ_ONLY_MANY: Self = Self(1 << 1);
    /// `ReadWriteMany`
    pub const READ_WRITE_MANY: Self = Self(1 << 2);
    /// `ReadWriteOncePod`
    pub const READ_WRITE_ONCE_POD: Self = Self(1 << 3);

    /// Returns the set of the modes with these names.
    pub fn of<T: AsRef<str>>(names: impl IntoIterator<Item = T>) -> Self {
        names.into_iter().fold(Self::default(), |set, name| set.with(name.as_ref()))
    }

    fn with(self, name: &str) -> Self {
        let bit = NAMES.iter().position(|(known, _)| *known == name).map_or(0, |position| 1 << position);
        Self(self.0 | bit)
    }

    /// Returns true if all modes of `other` are in this set.
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns true if the sets have a mode in common.
    pub fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Returns the number of modes.
    pub fn len(self) -> u32 {
        self.0.count_ones()
    }

    /// Returns true if the set is empty.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl std::ops::BitOr for AccessModes {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl fmt::Display for AccessModes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let short = NAMES.iter().enumerate().filter(|(bit, _)| self.0 & 1 << bit != 0).map(|(_, (_, short))| *short);
        f.write_str(&short.collect::<Vec<_>>().join(","))
    }
}

impl fmt::Debug for AccessModes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AccessModes({self})")
    }
}

/// The form in which containers get a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum VolumeMode {
    /// A mounted file system, or the field is absent.
    #[default]
    Filesystem,
    /// A raw block device.
    Block,
}

impl VolumeMode {
    pub(crate) fn parse(text: &str) -> Self {
        if text == "Block" { Self::Block } else { Self::Filesystem }
    }

    /// Returns its name in the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Filesystem => "Filesystem",
            Self::Block => "Block",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_modes_are_a_set_in_a_fixed_order() {
        let modes = AccessModes::of(["ReadWriteMany", "ReadWriteOnce", "ReadWriteMany", "Unknown"]);
        assert_eq!((modes.to_string().as_str(), modes.len()), ("RWO,RWX", 2));
        assert!(modes.contains(AccessModes::READ_WRITE_MANY) && modes.contains(AccessModes::default()));
        assert!(!modes.contains(AccessModes::READ_WRITE_ONCE | AccessModes::READ_ONLY_MANY));
        assert!(modes.intersects(AccessModes::READ_WRITE_ONCE | AccessModes::READ_ONLY_MANY));
        assert!(AccessModes::of(["Unknown"]).is_empty());
        assert_eq!(AccessModes::READ_WRITE_ONCE_POD.to_string(), "RWOP");
    }

    #[test]
    fn absent_volume_mode_is_filesystem() {
        for (text, mode) in
            [("", VolumeMode::Filesystem), ("Filesystem", VolumeMode::Filesystem), ("Block", VolumeMode::Block)]
        {
            assert_eq!(VolumeMode::parse(text), mode, "{text:?}");
        }
    }
}
