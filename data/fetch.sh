# Sourced by the download scripts: fetch FILE into the current folder, whole or not at all.
# MIRROR is another place that holds the same files (https://… or file:///…).
MIRROR=${MIRROR:-https://huggingface.co/datasets/princeton-nlp/datasets-for-simcse/resolve/main}

stop() {
    echo "error: $1" >&2
    exit 1
}

# fetch FILE CHECK: download FILE to FILE.part, going on where an earlier call was cut off, run CHECK FILE.part, and
# only then give it its name. A file that is there already is checked and kept.
fetch() {
    local file=$1 check=$2
    if [ -e "$file" ]; then
        "$check" "$file"
        echo "$file is here already, and whole"
        return
    fi
    if [ -e "$file.part" ] && ("$check" "$file.part") > /dev/null 2>&1; then
        : # an earlier call got it all and was cut off before it could name it
    elif command -v curl > /dev/null; then
        curl --fail --location --retry 3 --continue-at - --output "$file.part" "$MIRROR/$file" \
            || stop "could not download $MIRROR/$file; what came is kept in $file.part, run this again to go on"
    elif command -v wget > /dev/null; then
        wget --continue --output-document "$file.part" "$MIRROR/$file" \
            || stop "could not download $MIRROR/$file; what came is kept in $file.part, run this again to go on"
    else
        stop "neither curl nor wget is here; install one of them"
    fi
    "$check" "$file.part"
    mv "$file.part" "$file"
    echo "$file: $(wc -c < "$file") bytes, sha256 $( (sha256sum "$file" || shasum -a 256 "$file") 2> /dev/null | cut -d ' ' -f 1)"
}

# expect_count FILE FOUND EXPECTED WHAT [DELETE]: DELETE is what stands in the way of a new download, by default FILE.
expect_count() {
    [ "$2" -eq "$3" ] || stop "$1 holds $2 $4, $3 are expected; delete ${5:-it} and run this again"
}
