_superpacket() {
    local IFS=$'\013' line=$COMP_LINE blank word index=0 cursor=0 breaks= before= quoted= reply
    local -a words=() replies=()
    # Bash parts words at colons and equals signs, which port strings have: they are joined again.
    for ((index = 0; index < ${#COMP_WORDS[@]}; index++)); do
        word=${COMP_WORDS[index]}
        blank=${line%%[![:space:]]*}
        line=${line#"$blank"}
        line=${line#"$word"}
        if ((index == COMP_CWORD)) && [[ $word != [:=]* ]]; then
            word=$2
        fi
        if ((index == 0)) || [[ -n $blank ]]; then
            words+=("$word")
        elif ((index <= COMP_CWORD || ${#words[@]} - 1 > cursor)); then
            words[${#words[@]} - 1]+=$word
        fi
        if ((index == COMP_CWORD)); then
            cursor=$((${#words[@]} - 1))
        fi
    done
    replies=($(_CLAP_IFS=$IFS _CLAP_COMPLETE_INDEX=$cursor VARIABLE=bash COMPLETER -- "${words[@]}" 2>/dev/null)) || return
    # What bash replaces begins behind the last of these signs, but within quotes with the word.
    [[ $COMP_WORDBREAKS == *:* ]] && breaks+=:
    [[ $COMP_WORDBREAKS == *=* ]] && breaks+==
    word=${words[cursor]}
    [[ ${COMP_WORDS[COMP_CWORD]} == [\'\"]* ]] && quoted=yes
    if [[ -n $breaks && -z $quoted ]]; then
        before=${word%"${word##*[$breaks]}"}
    fi
    COMPREPLY=()
    for reply in "${replies[@]}"; do
        reply=${reply#"$before"}
        # Signs that the shell would take for its own.
        if [[ -z $quoted ]]; then
            printf -v reply %q "$reply"
        fi
        COMPREPLY+=("$reply")
    done
    if [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *[=/:] ]]; then
        compopt -o nospace 2>/dev/null
    fi
}
complete -o bashdefault -o nosort -F _superpacket BIN 2>/dev/null || complete -o bashdefault -F _superpacket BIN
