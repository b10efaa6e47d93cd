# Completion of putexctl(1) for fish. putexctl itself knows its verbs and options, and asks putexd for the names of services and
# hosts.

function __putexctl_complete
    set -l words (commandline --tokenize --cut-at-cursor --current-process) (commandline --current-token --cut-at-cursor)
    putexctl complete -- $words[2..] 2>/dev/null
end

complete --command putexctl --no-files --arguments '(__putexctl_complete)'
complete --command putexctl --long-option svg --require-parameter --force-files
complete --command putexctl --long-option root --require-parameter --force-files
