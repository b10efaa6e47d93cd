# Completion of putexctl(1) for fish. putexctl itself knows its verbs and options, and asks putexd for the names of services and
# hosts.
COMPLETE=fish putexctl | source
