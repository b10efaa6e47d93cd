//! The fingerprint of a state, which is the same for all states from which the same can follow.
//!
//! States keep their absolute times, revisions and random ids, so that nothing has to be rewritten when time passes. What is
//! told apart is decided here, by a serializer that hashes:
//!
//! - times relative to the clock of their host, where all times are equal that are older than anything that matters;
//! - revisions relative to the store's latest, where all are equal that are older than what the store still shows;
//! - random ids and incarnations by the order in which they first occur;
//! - nothing that cannot change what is done: see [`Canonical::meaning`].
//!
//! All of putexd's own state gets here through its derived `Serialize`, so a field that is added to the election later is told
//! apart without a change here. Too fine a fingerprint only costs time. Too coarse a one would hide states, but it never
//! invents an overlap: the explored states are real ones.

use std::{fmt::Display, hash::Hasher, time::Duration};

use serde::ser::{self, Serialize};

use crate::types::{Revision, Time, WriteId};

/// What the values of a state are hashed relative to.
#[expect(clippy::struct_excessive_bools, reason = "each is an independent fact")]
pub struct Canonical<'a, H> {
    hasher: &'a mut H,
    /// The clock of the host whose state is hashed.
    pub now: Time,
    /// All ages above this are equal.
    pub oldest: Duration,
    /// Ages above this are equal for times that only tell whether the store was watched.
    pub gap: Duration,
    /// All ages of an active tenure above this are equal, while there is a back-off.
    pub oldest_tenure: Duration,
    /// The store's latest revision, and the first one that it still shows.
    pub latest: u64,
    pub earliest: u64,
    /// The highest fencing token in the state.
    pub highest_token: u64,
    /// The writes that may still be applied or show up. Every other one counts as never sent.
    pub live_writes: Vec<WriteId>,
    /// Whether health checks are configured.
    pub checks: bool,
    /// Whether a call may be given up.
    pub losses: bool,
    ids: Vec<u128>,
    incarnations: Vec<u128>,
    reads: Vec<u64>,
    backed_off: bool,
    waits: bool,
}

/// A hasher that mixes well and fast. It is here to be optimized with the model, because millions of states pass through it.
#[derive(Debug, Clone, Copy)]
pub struct Mixer(u64);

impl Default for Mixer {
    fn default() -> Self {
        Self(0x243F_6A88_85A3_08D3)
    }
}

impl Hasher for Mixer {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u8(&mut self, value: u8) {
        self.write_u64(value.into());
    }

    fn write_u32(&mut self, value: u32) {
        self.write_u64(value.into());
    }

    fn write_u64(&mut self, value: u64) {
        let product = u128::from(self.0 ^ value) * u128::from(0x9E37_79B9_7F4A_7C15_u64);
        let folded = low(product) ^ low(product >> 64);
        self.0 = folded.rotate_left(23).wrapping_add(0x1319_8A2E_0370_7344);
    }

    fn write_u128(&mut self, value: u128) {
        self.write_u64(low(value));
        self.write_u64(low(value >> 64));
    }
}

fn low(value: u128) -> u64 {
    u64::try_from(value & u128::from(u64::MAX)).unwrap_or_default()
}

/// How a field is hashed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Meaning {
    Whole,
    /// It is left out.
    Nothing,
    /// A point in time that no longer matters once it has passed.
    Ahead,
    /// A point in time that matters for as long as the gap that counts as watching.
    Watched,
    /// A counter, whose values above this limit are equal.
    UpTo(u64),
    /// The id of a write, which matters only as long as the write can show up.
    IfLive,
}

/// The error of the serializer, which never occurs for the types of the model.
#[derive(Debug)]
pub struct Never;

impl Display for Never {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a type that this serializer does not know")
    }
}

impl std::error::Error for Never {}

impl ser::Error for Never {
    fn custom<T: Display>(_: T) -> Self {
        Self
    }
}

impl<'a, H: Hasher> Canonical<'a, H> {
    pub fn new(
        hasher: &'a mut H,
        oldest: Duration,
        gap: Duration,
        oldest_tenure: Duration,
    ) -> Self {
        Self {
            hasher,
            now: Time::default(),
            oldest,
            gap,
            oldest_tenure,
            latest: 0,
            earliest: 0,
            highest_token: 0,
            live_writes: Vec::new(),
            checks: false,
            losses: false,
            ids: Vec::new(),
            incarnations: Vec::new(),
            reads: Vec::new(),
            backed_off: false,
            waits: false,
        }
    }

    pub fn add<T: Serialize + ?Sized>(&mut self, value: &T) {
        value
            .serialize(Walk {
                to: self,
                meaning: Meaning::Whole,
            })
            .expect("all of these types are known");
    }

    pub fn number(&mut self, number: u64) {
        self.hasher.write_u64(number);
    }

    /// Begins another host: ids of reads are separate for each host.
    pub fn next_host(&mut self, now: Time) {
        self.now = now;
        self.reads.clear();
    }

    /// How a field is hashed: which fields are left out, and why that is sound.
    fn meaning(&self, of: &'static str, field: &'static str) -> Meaning {
        match (of, field) {
            // The model knows the settings by their number. When the election was last called does not decide what it does
            // next. Texts for people decide nothing, and exist together with what they are about. The ids of reads only have to
            // be told apart, and their counter is at the latest of them. Former holders and the duration of a read shift a turn
            // among contenders. So do revisions, which are told apart by their distance alone.
            ("Election", "settings" | "last_now")
            | ("OperatorNote", "reason" | "by")
            | ("ReleaseCause", "result")
            | ("Reads", "last_id")
            | ("Details" | "Tenure", "holders")
            | ("ObservedLock", "round_trip")
            | ("Lease", "service" | "node" | "units" | "cgroups" | "inactive") => Meaning::Nothing,
            // The time of a call matters only if a call may be given up.
            ("Call", "sent") if !self.losses => Meaning::Nothing,
            // It says when a check last passed.
            ("Election", "last_pass") if !self.checks => Meaning::Nothing,
            // The time of the entitlement matters only while a claim waits for it.
            ("Entitlement", "entitled_at") if !self.waits => Meaning::Nothing,
            // This only tells whether the store was watched all the time.
            ("LockView", "watched") => Meaning::Watched,
            ("Reads", "due")
            | ("Attempts", "next")
            | ("BackOff", "until")
            | ("Release", "stop_limit_at") => Meaning::Ahead,
            // Only "none" and "some" are told apart.
            ("Claim", "renewals") => Meaning::UpTo(1),
            _ => Meaning::Whole,
        }
    }

    fn rank(known: &mut Vec<u128>, id: u128) -> u64 {
        let position = known
            .iter()
            .position(|other| *other == id)
            .unwrap_or_else(|| {
                known.push(id);
                known.len() - 1
            });
        position as u64
    }

    fn time(&mut self, time: Time, meaning: Meaning) {
        let oldest = match meaning {
            Meaning::Ahead => Duration::ZERO,
            Meaning::Watched => self.gap,
            Meaning::Whole | Meaning::Nothing | Meaning::UpTo(_) | Meaning::IfLive => self.oldest,
        };
        self.time_within(time, oldest);
    }

    fn time_within(&mut self, time: Time, oldest: Duration) {
        for (then, now) in [(time.boot, self.now.boot), (time.raw, self.now.raw)] {
            let age = now.saturating_sub(then).min(oldest);
            let ahead = then.saturating_sub(now);
            self.hasher
                .write_u64(nanos(ahead) ^ (nanos(age) << 1).reverse_bits());
        }
    }

    fn revision(&mut self, revision: Revision) {
        let Revision(number) = revision;
        let code = if number == 0 {
            0
        } else if number > self.latest {
            u64::MAX - (number - self.latest)
        } else {
            1 + (self.latest - number).min(self.latest - self.earliest + 1)
        };
        self.hasher.write_u64(code);
    }
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

/// Serializes one value into the hash.
struct Walk<'c, 'a, H> {
    to: &'c mut Canonical<'a, H>,
    meaning: Meaning,
}

macro_rules! plain {
    ($($method:ident: $type:ty),*) => {
        $(fn $method(self, value: $type) -> Result<(), Never> {
            self.to.hasher.write_u64(value.into());
            Ok(())
        })*
    };
}

macro_rules! refuse {
    ($($method:ident: $type:ty),*) => {
        $(fn $method(self, _: $type) -> Result<Self::Ok, Never> {
            Err(Never)
        })*
    };
}

impl<'c, 'a, H: Hasher> ser::Serializer for Walk<'c, 'a, H> {
    type Ok = ();
    type Error = Never;
    type SerializeSeq = Parts<'c, 'a, H>;
    type SerializeTuple = Parts<'c, 'a, H>;
    type SerializeTupleStruct = Parts<'c, 'a, H>;
    type SerializeTupleVariant = Parts<'c, 'a, H>;
    type SerializeMap = Parts<'c, 'a, H>;
    type SerializeStruct = Fields<'c, 'a, H>;
    type SerializeStructVariant = Fields<'c, 'a, H>;

    plain! { serialize_bool: bool, serialize_u8: u8, serialize_u16: u16, serialize_char: char }
    // The model's state has no values of these types.
    refuse! {
        serialize_i8: i8, serialize_i16: i16, serialize_i32: i32, serialize_i64: i64, serialize_f32: f32,
        serialize_f64: f64
    }

    fn is_human_readable(&self) -> bool {
        false
    }

    fn serialize_u32(self, value: u32) -> Result<(), Never> {
        self.serialize_u64(value.into())
    }

    fn serialize_u64(self, value: u64) -> Result<(), Never> {
        let value = if let Meaning::UpTo(limit) = self.meaning {
            value.min(limit)
        } else {
            value
        };
        self.to.hasher.write_u64(value);
        Ok(())
    }

    fn serialize_i128(self, value: i128) -> Result<(), Never> {
        self.to.hasher.write_i128(value);
        Ok(())
    }

    fn serialize_u128(self, value: u128) -> Result<(), Never> {
        self.to.hasher.write_u128(value);
        Ok(())
    }

    fn serialize_str(self, text: &str) -> Result<(), Never> {
        self.to.hasher.write(text.as_bytes());
        self.to.hasher.write_u8(0xff);
        Ok(())
    }

    fn serialize_bytes(self, bytes: &[u8]) -> Result<(), Never> {
        self.to.hasher.write(bytes);
        self.to.hasher.write_u8(0xff);
        Ok(())
    }

    fn serialize_none(self) -> Result<(), Never> {
        self.to.hasher.write_u8(0);
        Ok(())
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), Never> {
        self.to.hasher.write_u8(1);
        value.serialize(self)
    }

    fn serialize_unit(self) -> Result<(), Never> {
        Ok(())
    }

    fn serialize_unit_struct(self, _: &'static str) -> Result<(), Never> {
        Ok(())
    }

    fn serialize_unit_variant(
        self,
        of: &'static str,
        index: u32,
        variant: &'static str,
    ) -> Result<(), Never> {
        self.to.hasher.write_u32(index);
        if of == "Phase" {
            self.to.waits = matches!(variant, "Claiming" | "Confirming");
        }
        Ok(())
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        value: &T,
    ) -> Result<(), Never> {
        match name {
            "Revision" => {
                let number = value.serialize(Number)?;
                self.to
                    .revision(Revision(u64::try_from(number).map_err(|_| Never)?));
            }
            "FencingToken" => {
                let number = u64::try_from(value.serialize(Number)?).map_err(|_| Never)?;
                // A new token is above all that its writer knows, and how far it is above decides nothing.
                self.to
                    .hasher
                    .write_u64(self.to.highest_token.saturating_sub(number).min(3));
            }
            "ReadId" => {
                let number = u64::try_from(value.serialize(Number)?).map_err(|_| Never)?;
                let reads = &mut self.to.reads;
                let position = reads
                    .iter()
                    .position(|other| *other == number)
                    .unwrap_or_else(|| {
                        reads.push(number);
                        reads.len() - 1
                    });
                self.to.hasher.write_u64(position as u64);
            }
            "Instance" | "WriteId" | "MachineId" | "BootId" => {
                let id = value.serialize(Number)?;
                if self.meaning == Meaning::IfLive && !self.to.live_writes.contains(&WriteId(id)) {
                    return Ok(());
                }
                let rank = Canonical::<H>::rank(&mut self.to.ids, id);
                self.to.hasher.write_u64(rank);
            }
            "Incarnation" => {
                let name = value.serialize(Number)?;
                let rank = Canonical::<H>::rank(&mut self.to.incarnations, name);
                self.to.hasher.write_u64(rank);
            }
            _ => value.serialize(self)?,
        }
        Ok(())
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        of: &'static str,
        index: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<(), Never> {
        self.to.hasher.write_u32(index);
        if of == "Phase" {
            self.to.waits = false;
            // The age of an active tenure matters while there is a back-off to be forgotten. The back-off is serialized before
            // it.
            if variant == "Active" {
                let limit = if self.to.backed_off {
                    self.to.oldest_tenure
                } else {
                    Duration::ZERO
                };
                self.to.time_within(value.serialize(Point)?, limit);
                return Ok(());
            }
        }
        value.serialize(self)
    }

    fn serialize_seq(self, length: Option<usize>) -> Result<Parts<'c, 'a, H>, Never> {
        // Where writes that cannot show up are left out, only the number of the others matters, and hashing these shows it.
        if self.meaning != Meaning::IfLive {
            self.to.hasher.write_u64(length.unwrap_or_default() as u64);
        }
        Ok(Parts {
            to: self.to,
            meaning: self.meaning,
        })
    }

    fn serialize_tuple(self, _: usize) -> Result<Parts<'c, 'a, H>, Never> {
        Ok(Parts {
            to: self.to,
            meaning: self.meaning,
        })
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<Parts<'c, 'a, H>, Never> {
        Ok(Parts {
            to: self.to,
            meaning: self.meaning,
        })
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        index: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Parts<'c, 'a, H>, Never> {
        self.to.hasher.write_u32(index);
        Ok(Parts {
            to: self.to,
            meaning: Meaning::Whole,
        })
    }

    fn serialize_map(self, length: Option<usize>) -> Result<Parts<'c, 'a, H>, Never> {
        self.to.hasher.write_u64(length.unwrap_or_default() as u64);
        Ok(Parts {
            to: self.to,
            meaning: Meaning::Whole,
        })
    }

    fn serialize_struct(self, name: &'static str, _: usize) -> Result<Fields<'c, 'a, H>, Never> {
        if name == "BackOff" {
            self.to.backed_off = false;
        }
        Ok(Fields {
            to: self.to,
            name,
            meaning: self.meaning,
            skips: false,
            time: Time::default(),
        })
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        index: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Fields<'c, 'a, H>, Never> {
        self.to.hasher.write_u32(index);
        Ok(Fields {
            to: self.to,
            name: variant,
            meaning: Meaning::Whole,
            skips: false,
            time: Time::default(),
        })
    }
}

/// Serializes the elements of a sequence.
struct Parts<'c, 'a, H> {
    to: &'c mut Canonical<'a, H>,
    meaning: Meaning,
}

impl<H: Hasher> Parts<'_, '_, H> {
    fn part<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Never> {
        value.serialize(Walk {
            to: self.to,
            meaning: self.meaning,
        })
    }
}

macro_rules! parts {
    ($($name:ident: $method:ident),*) => {
        $(impl<H: Hasher> ser::$name for Parts<'_, '_, H> {
            type Ok = ();
            type Error = Never;
            fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Never> {
                self.part(value)
            }
            fn end(self) -> Result<(), Never> {
                Ok(())
            }
        })*
    };
}

parts! {
    SerializeSeq: serialize_element, SerializeTuple: serialize_element, SerializeTupleStruct: serialize_field,
    SerializeTupleVariant: serialize_field
}

impl<H: Hasher> ser::SerializeMap for Parts<'_, '_, H> {
    type Ok = ();
    type Error = Never;
    fn serialize_key<T: Serialize + ?Sized>(&mut self, _: &T) -> Result<(), Never> {
        // The key is left out: the only map is the guard's table, and there is one service.
        Ok(())
    }
    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Never> {
        self.part(value)
    }
    fn end(self) -> Result<(), Never> {
        Ok(())
    }
}

/// Serializes the fields of a struct.
struct Fields<'c, 'a, H> {
    to: &'c mut Canonical<'a, H>,
    name: &'static str,
    meaning: Meaning,
    skips: bool,
    time: Time,
}

impl<H: Hasher> Fields<'_, '_, H> {
    fn field<T: Serialize + ?Sized>(&mut self, key: &'static str, value: &T) -> Result<(), Never> {
        if self.skips {
            return Ok(());
        }
        match (self.name, key) {
            ("Time", "boot") => self.time.boot = value.serialize(Span)?,
            ("Time", _) => self.time.raw = value.serialize(Span)?,
            // An attempt whose write cannot show up any more counts as none.
            ("Attempt", "write") => {
                let id = WriteId(value.serialize(Number)?);
                self.skips = !self.to.live_writes.contains(&id);
                if !self.skips {
                    value.serialize(Walk {
                        to: self.to,
                        meaning: Meaning::Whole,
                    })?;
                }
            }
            ("BackOff", "last") => {
                self.to.backed_off = !value.serialize(Span)?.is_zero();
                value.serialize(Walk {
                    to: self.to,
                    meaning: Meaning::Whole,
                })?;
            }
            ("Attempts", "list") => value.serialize(Walk {
                to: self.to,
                meaning: Meaning::IfLive,
            })?,
            _ => {
                let meaning = self.to.meaning(self.name, key);
                if meaning != Meaning::Nothing {
                    value.serialize(Walk {
                        to: self.to,
                        meaning,
                    })?;
                }
            }
        }
        Ok(())
    }

    fn finish(self) {
        if self.name == "Time" {
            self.to.time(self.time, self.meaning);
        }
    }
}

impl<H: Hasher> ser::SerializeStruct for Fields<'_, '_, H> {
    type Ok = ();
    type Error = Never;
    fn serialize_field<T: Serialize + ?Sized>(
        &mut self,
        key: &'static str,
        value: &T,
    ) -> Result<(), Never> {
        self.field(key, value)
    }
    fn end(self) -> Result<(), Never> {
        self.finish();
        Ok(())
    }
}

impl<H: Hasher> ser::SerializeStructVariant for Fields<'_, '_, H> {
    type Ok = ();
    type Error = Never;
    fn serialize_field<T: Serialize + ?Sized>(
        &mut self,
        key: &'static str,
        value: &T,
    ) -> Result<(), Never> {
        self.field(key, value)
    }
    fn end(self) -> Result<(), Never> {
        self.finish();
        Ok(())
    }
}

type No<T> = ser::Impossible<T, Never>;

macro_rules! refuse_the_rest {
    () => {
        refuse! {
            serialize_bool: bool, serialize_i8: i8, serialize_i16: i16, serialize_i32: i32, serialize_i64: i64,
            serialize_u8: u8, serialize_u16: u16, serialize_f32: f32, serialize_f64: f64, serialize_char: char,
            serialize_bytes: &[u8]
        }
        fn serialize_none(self) -> Result<Self::Ok, Never> {
            Err(Never)
        }
        fn serialize_some<T: Serialize + ?Sized>(self, _: &T) -> Result<Self::Ok, Never> {
            Err(Never)
        }
        fn serialize_unit(self) -> Result<Self::Ok, Never> {
            Err(Never)
        }
        fn serialize_unit_struct(self, _: &'static str) -> Result<Self::Ok, Never> {
            Err(Never)
        }
        fn serialize_unit_variant(self, _: &'static str, _: u32, _: &'static str) -> Result<Self::Ok, Never> {
            Err(Never)
        }
        fn serialize_newtype_variant<T: Serialize + ?Sized>(
            self,
            _: &'static str,
            _: u32,
            _: &'static str,
            _: &T,
        ) -> Result<Self::Ok, Never> {
            Err(Never)
        }
        fn serialize_seq(self, _: Option<usize>) -> Result<No<Self::Ok>, Never> {
            Err(Never)
        }
        fn serialize_tuple(self, _: usize) -> Result<No<Self::Ok>, Never> {
            Err(Never)
        }
        fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<No<Self::Ok>, Never> {
            Err(Never)
        }
        fn serialize_tuple_variant(
            self,
            _: &'static str,
            _: u32,
            _: &'static str,
            _: usize,
        ) -> Result<No<Self::Ok>, Never> {
            Err(Never)
        }
        fn serialize_map(self, _: Option<usize>) -> Result<No<Self::Ok>, Never> {
            Err(Never)
        }
        fn serialize_struct_variant(
            self,
            _: &'static str,
            _: u32,
            _: &'static str,
            _: usize,
        ) -> Result<No<Self::Ok>, Never> {
            Err(Never)
        }
    };
}

macro_rules! impossible {
    ($ok:ty) => {
        type Ok = $ok;
        type Error = Never;
        type SerializeSeq = No<$ok>;
        type SerializeTuple = No<$ok>;
        type SerializeTupleStruct = No<$ok>;
        type SerializeTupleVariant = No<$ok>;
        type SerializeMap = No<$ok>;
        type SerializeStructVariant = No<$ok>;
        fn is_human_readable(&self) -> bool {
            false
        }
    };
}

/// Extracts the number from a newtype. For a text it is a hash.
struct Number;

impl ser::Serializer for Number {
    impossible!(u128);
    type SerializeStruct = No<u128>;

    fn serialize_u32(self, value: u32) -> Result<u128, Never> {
        Ok(value.into())
    }
    fn serialize_u64(self, value: u64) -> Result<u128, Never> {
        Ok(value.into())
    }
    fn serialize_u128(self, value: u128) -> Result<u128, Never> {
        Ok(value)
    }
    fn serialize_str(self, text: &str) -> Result<u128, Never> {
        let mut mixer = Mixer::default();
        mixer.write(text.as_bytes());
        Ok(mixer.finish().into())
    }
    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> Result<u128, Never> {
        value.serialize(self)
    }
    fn serialize_struct(self, _: &'static str, _: usize) -> Result<No<u128>, Never> {
        Err(Never)
    }
    refuse_the_rest!();
}

/// Extracts a span.
struct Span;

/// Collects the two fields of a span, or the two spans of a point in time.
struct Halves<T> {
    first: T,
    second: T,
    count: u8,
}

impl ser::Serializer for Span {
    impossible!(Duration);
    type SerializeStruct = Halves<u64>;

    fn serialize_struct(self, name: &'static str, _: usize) -> Result<Halves<u64>, Never> {
        if name == "Duration" {
            Ok(Halves {
                first: 0,
                second: 0,
                count: 0,
            })
        } else {
            Err(Never)
        }
    }
    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: &T,
    ) -> Result<Duration, Never> {
        Err(Never)
    }
    refuse! { serialize_u32: u32, serialize_u64: u64, serialize_str: &str }
    refuse_the_rest!();
}

impl ser::SerializeStruct for Halves<u64> {
    type Ok = Duration;
    type Error = Never;
    fn serialize_field<T: Serialize + ?Sized>(
        &mut self,
        _: &'static str,
        value: &T,
    ) -> Result<(), Never> {
        let number = u64::try_from(value.serialize(Number)?).map_err(|_| Never)?;
        *(if self.count == 0 {
            &mut self.first
        } else {
            &mut self.second
        }) = number;
        self.count += 1;
        Ok(())
    }
    fn end(self) -> Result<Duration, Never> {
        Ok(Duration::new(
            self.first,
            u32::try_from(self.second).map_err(|_| Never)?,
        ))
    }
}

/// Extracts a point in time.
struct Point;

impl ser::Serializer for Point {
    impossible!(Time);
    type SerializeStruct = Halves<Duration>;

    fn serialize_struct(self, name: &'static str, _: usize) -> Result<Halves<Duration>, Never> {
        if name == "Time" {
            Ok(Halves {
                first: Duration::ZERO,
                second: Duration::ZERO,
                count: 0,
            })
        } else {
            Err(Never)
        }
    }
    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: &T,
    ) -> Result<Time, Never> {
        Err(Never)
    }
    refuse! { serialize_u32: u32, serialize_u64: u64, serialize_str: &str }
    refuse_the_rest!();
}

impl ser::SerializeStruct for Halves<Duration> {
    type Ok = Time;
    type Error = Never;
    fn serialize_field<T: Serialize + ?Sized>(
        &mut self,
        _: &'static str,
        value: &T,
    ) -> Result<(), Never> {
        let span = value.serialize(Span)?;
        *(if self.count == 0 {
            &mut self.first
        } else {
            &mut self.second
        }) = span;
        self.count += 1;
        Ok(())
    }
    fn end(self) -> Result<Time, Never> {
        Ok(Time {
            boot: self.first,
            raw: self.second,
        })
    }
}
