//! What is served, as tables: the text of an introspection is made from them, and a test compares the manual page with them.

use std::fmt::Write as _;

use super::object::{PROPERTIES, Property, Told};

pub(super) const STATUS: &str = "org.putexd.Putexd1.Status";
pub(super) const MANAGER: &str = "org.putexd.Putexd1.Manager";
pub(super) const OF_SERVICE: &str = "org.putexd.Putexd1.Service";
pub(super) const PEER: &str = "org.freedesktop.DBus.Peer";
pub(super) const INTROSPECTABLE: &str = "org.freedesktop.DBus.Introspectable";
pub(super) const PROPERTIES_OF: &str = "org.freedesktop.DBus.Properties";
pub(super) const OBJECT_MANAGER: &str = "org.freedesktop.DBus.ObjectManager";

/// The name of an argument, and its type.
type Argument = (&'static str, &'static str);

/// A method.
pub(super) struct Method {
    pub(super) name: &'static str,
    pub(super) takes: &'static [Argument],
    pub(super) gives: &'static [Argument],
    /// The options that it knows, where it takes any.
    pub(super) options: &'static [&'static str],
}

/// An interface.
pub(super) struct Interface {
    pub(super) name: &'static str,
    pub(super) methods: &'static [Method],
    pub(super) signals: &'static [(&'static str, &'static [Argument])],
    pub(super) properties: &'static [Property],
}

const NAMED: &[Argument] = &[("service", "s"), ("options", "a{sv}")];
const OPTIONS: &[Argument] = &[("options", "a{sv}")];
const ANSWER: &[Argument] = &[("answer", "a{sv}")];

const fn verb(name: &'static str, takes: &'static [Argument], options: &'static [&'static str]) -> Method {
    Method { name, takes, gives: ANSWER, options }
}

const fn look(name: &'static str, takes: &'static [Argument], gives: &'static [Argument]) -> Method {
    Method { name, takes, gives, options: &[] }
}

/// What everybody may ask for.
pub(super) static OF_STATUS: Interface = Interface {
    name: STATUS,
    methods: &[
        look("ListServices", &[], &[("services", "aa{sv}")]),
        look("DescribeService", &[("service", "s")], &[("service", "a{sv}")]),
        look("DescribeStore", &[], &[("store", "a{sv}")]),
        look("DescribeCluster", &[], &[("cluster", "a{sv}")]),
        Method { name: "DescribeHistory", takes: NAMED, gives: &[("runs", "aa{sv}")], options: &["limit"] },
    ],
    signals: &[],
    properties: &[],
};

/// What root may do, and whom polkit permits it.
pub(super) static OF_MANAGER: Interface = Interface {
    name: MANAGER,
    methods: &[
        verb("StepDown", NAMED, &["reason", "to"]),
        verb("Stop", NAMED, &["reason", "until"]),
        verb("Start", NAMED, &[]),
        verb("Pause", NAMED, &["reason", "seconds"]),
        verb("Resume", NAMED, &[]),
        verb("Adopt", NAMED, &[]),
        verb("Drain", OPTIONS, &["reason", "until", "force"]),
        verb("Undrain", OPTIONS, &[]),
        verb("ConfirmDead", &[("node", "s"), ("options", "a{sv}")], &[]),
    ],
    signals: &[],
    properties: &[],
};

/// A service's object.
pub(super) static SERVICE_OBJECT: Interface = Interface {
    name: OF_SERVICE,
    methods: &[],
    signals: &[(super::TRANSITION, &[("transition", "a{sv}")])],
    properties: &PROPERTIES,
};

static MANAGED: Interface = Interface {
    name: OBJECT_MANAGER,
    methods: &[look("GetManagedObjects", &[], &[("objects", "a{oa{sa{sv}}}")])],
    signals: &[
        ("InterfacesAdded", &[("path", "o"), ("interfaces", "a{sa{sv}}")]),
        ("InterfacesRemoved", &[("path", "o"), ("interfaces", "as")]),
    ],
    properties: &[],
};

static STANDARD: [Interface; 2] = [
    Interface {
        name: PEER,
        methods: &[look("Ping", &[], &[]), look("GetMachineId", &[], &[("machine_uuid", "s")])],
        signals: &[],
        properties: &[],
    },
    Interface {
        name: INTROSPECTABLE,
        methods: &[look("Introspect", &[], &[("xml_data", "s")])],
        signals: &[],
        properties: &[],
    },
];

static WITH_PROPERTIES: Interface = Interface {
    name: PROPERTIES_OF,
    methods: &[
        look("Get", &[("interface", "s"), ("property", "s")], &[("value", "v")]),
        look("GetAll", &[("interface", "s")], &[("properties", "a{sv}")]),
        look("Set", &[("interface", "s"), ("property", "s"), ("value", "v")], &[]),
    ],
    signals: &[(
        "PropertiesChanged",
        &[("interface", "s"), ("changed_properties", "a{sv}"), ("invalidated_properties", "as")],
    )],
    properties: &[],
};

/// The interfaces of the first object.
pub(super) fn of_manager() -> [&'static Interface; 4] {
    [&OF_STATUS, &OF_MANAGER, &MANAGED, &WITH_PROPERTIES]
}

/// The interfaces of a service's object.
pub(super) fn of_service() -> [&'static Interface; 2] {
    [&SERVICE_OBJECT, &WITH_PROPERTIES]
}

/// The text that describes an object with these interfaces and children.
pub(super) fn xml<'a>(interfaces: &[&Interface], children: impl Iterator<Item = &'a str>) -> String {
    let mut text = String::from(
        "<!DOCTYPE node PUBLIC \"-//freedesktop//DTD D-BUS Object Introspection 1.0//EN\"\n \
         \"http://www.freedesktop.org/standards/dbus/1.0/introspect.dtd\">\n<node>\n",
    );
    for interface in STANDARD.iter().chain(interfaces.iter().copied()) {
        write_interface(&mut text, interface).expect("writing to a string does not fail");
    }
    for child in children {
        writeln!(text, " <node name=\"{child}\"/>").expect("writing to a string does not fail");
    }
    text.push_str("</node>\n");
    text
}

fn write_interface(text: &mut String, interface: &Interface) -> std::fmt::Result {
    writeln!(text, " <interface name=\"{}\">", interface.name)?;
    for Method { name, takes, gives, .. } in interface.methods {
        writeln!(text, "  <method name=\"{name}\">")?;
        for (arguments, direction) in [(takes, "in"), (gives, "out")] {
            for (name, signature) in *arguments {
                writeln!(text, "   <arg name=\"{name}\" type=\"{signature}\" direction=\"{direction}\"/>")?;
            }
        }
        writeln!(text, "  </method>")?;
    }
    for (name, arguments) in interface.signals {
        writeln!(text, "  <signal name=\"{name}\">")?;
        for (name, signature) in *arguments {
            writeln!(text, "   <arg name=\"{name}\" type=\"{signature}\"/>")?;
        }
        writeln!(text, "  </signal>")?;
    }
    for Property { name, signature, told, .. } in interface.properties {
        let emits = match told {
            Told::Never => "const",
            Told::Value => "true",
            Told::Name => "invalidates",
            Told::No => "false",
        };
        writeln!(text, "  <property name=\"{name}\" type=\"{signature}\" access=\"read\">")?;
        writeln!(text, "   <annotation name=\"org.freedesktop.DBus.Property.EmitsChangedSignal\" value=\"{emits}\"/>")?;
        writeln!(text, "  </property>")?;
    }
    writeln!(text, " </interface>")
}
