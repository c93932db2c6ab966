{% macro _check_flags(existing, owner) -%}
    {#- Rejects dbt's --empty and --sample, with which a SELECT reads only some of its rows. -#}
    {%- if flags.EMPTY and existing is not none -%}
        {{ exceptions.raise_compiler_error(
            owner ~ ": --empty would empty " ~ this ~ ". Remove --empty, or build into another "
            ~ "schema (--target)."
        ) }}
    {%- elif invocation_args_dict.get("sample") -%}
        {{ exceptions.raise_compiler_error(
            owner ~ ": --sample reads only a part of the versions, so the newest version of a key "
            ~ "is unknown. Remove --sample, or exclude the model (--exclude) and sample the models "
            ~ "that read it."
        ) }}
    {%- endif -%}
{%- endmacro %}


{% macro _check_text(kind, sql, settings, strict, owner) -%}
    {#- Searches the plain text of the SQL, including its comments, for words whose result may
        change between builds. -#}
    {%- set changing = strandline._changing_function(sql) -%}
    {%- if changing -%}
        {%- do strandline._object(strict,
            owner ~ ": its SELECT contains `" ~ changing ~ "`, whose result differs from build to "
            ~ "build, but the table keeps what it returned when a version was new. Use it in a "
            ~ "model that reads " ~ this ~ "; for the time at which a row was loaded, select "
            ~ "_cq_sync_time."
        ) -%}
    {%- endif -%}
    {%- set row_filter = settings.get("row_filter") -%}
    {%- if row_filter is not none and row_filter is not string -%}
        {{ exceptions.raise_compiler_error(
            owner ~ ": its row_filter is " ~ tojson(row_filter) ~ ", not an SQL condition. Write it "
            ~ "as a string, such as row_filter: \"status = 'open'\"; for all rows, omit it."
        ) }}
    {%- endif -%}
    {%- set changing = strandline._changing_function(
        row_filter or "",
        ["select "] + (["is_current", "valid_from", "valid_to"] if kind == "history" else [])
    ) -%}
    {%- if changing -%}
        {%- do strandline._object(strict,
            owner ~ ": its row_filter contains `" ~ changing ~ "`, whose result changes without a "
            ~ "new version, but the filter runs only when a version arrives. Put the condition "
            ~ "into a model that reads " ~ this ~ "."
        ) -%}
    {%- endif -%}
    {%- set delete_stale = settings.get("delete_stale", false) -%}
    {%- if delete_stale is not none and delete_stale is not boolean -%}
        {{ exceptions.raise_compiler_error(
            owner ~ ": delete_stale is '" ~ delete_stale ~ "', not true or false. Write it without "
            ~ "quotes; from a variable, add `| as_bool`."
        ) }}
    {%- endif -%}
{%- endmacro %}


{% macro _changing_function(text, more=[]) -%}
    {#- Returns the first word whose result depends on the time or the session, or none. -#}
    {%- set plain = " " ~ text.replace("(", " ( ").replace(",", " , ").split() | join(" ") | lower
        ~ " " -%}
    {%- set words = [
        "now (", "rand (", "random (", "randn (", "uuid (", "uniform (", "shuffle (", "curdate (",
        "user (", "reflect (",
        "java_method (", "unix_timestamp ( )", "monotonically_increasing_id (",
        "spark_partition_id (", "input_file_name (",
        "input_file_block_", "aes_encrypt (", "current_date", "current_timestamp", "current_time ",
        "current_timezone", "current_user",
        "current_catalog", "current_database", "current_schema", "localtimestamp", "session_user",
        "'now'", "'today'",
        "'yesterday'", "'tomorrow'",
    ] -%}
    {%- for word in words + more if " " ~ word in plain or word.startswith("'")
        and word in plain -%}
        {{ return(word | trim | replace(" (", "(")) }}
    {%- endfor -%}
    {{ return(none) }}
{%- endmacro %}


{% macro _check_required_columns(columns, key, cursor, owner) -%}
    {%- set known = columns | map("lower") | list -%}
    {%- set needed = ["_cq_batch", "_cq_seq", "_cq_generation", "_cq_deleted", "_cq_row_hash",
        "_cq_sync_time"] -%}
    {%- set missing = needed | reject("in", known) | list -%}
    {%- if missing -%}
        {{ exceptions.raise_compiler_error(
            owner ~ ": its SELECT lacks " ~ missing | join(", ") ~ ". It must read a raw table of "
            ~ "the loader and keep the _cq_ columns, as in: select * from {{ source('shop', "
            ~ "'orders') }}"
        ) }}
    {%- endif -%}
    {%- do strandline._check_columns(key, columns, owner, "unique_key") -%}
    {%- do strandline._check_columns(
        strandline._as_list(cursor), columns, owner, "cursor_field") -%}
{%- endmacro %}


{% macro _check_raw_key(spec, owner) -%}
    {#- Checks the unique_key. A tombstone contains only the raw table's key, so with a different
        key, a deleted row would remain in the table. -#}
    {%- set ours = ["_cq_table", "_cq_source_name"] -%}
    {%- set key = spec.key | map("lower") | reject("in", ours) | sort -%}
    {%- for table in spec.tables -%}
        {%- do strandline._check_source_in_key(table.name, table.sources, spec.key, owner) -%}
        {%- if table.key and table.key | map("lower") | reject("in", ours) | sort != key -%}
            {%- do strandline._object(spec.strict,
                owner ~ ": its unique_key is " ~ spec.key | join(", ") ~ ", but the key of "
                ~ table.name ~ " is " ~ table.key | join(", ") ~ ". A deleted row has only that "
                ~ "key, and would stay in the table under any other key. Use that key as "
                ~ "unique_key, or compute unique_key from it alone."
            ) -%}
        {%- endif -%}
    {%- endfor -%}
{%- endmacro %}


{% macro _check_batches(spec, owner) -%}
    {#- Rejects new batches whose number of rows differs between raw table, ledger and commits. Also
        rejects a SELECT that omits or repeats versions of the new batches. -#}
    {%- for table in spec.tables if table.head > table.low -%}
        {%- set new = table.new.items() | selectattr("0", "gt", table.low)
            | selectattr("0", "le", table.head) | sort -%}
        {%- set committed = strandline._lineage(table, none).batches -%}
        {%- set acknowledged = strandline._acknowledged(
            table.relation, "batches_complete", owner) | selectattr("last") | list -%}
        {%- for batch, counts in new -%}
            {%- set raw_rows, ledger_rows = counts.raw_rows, counts.ledger_rows -%}
            {%- if table.has_ledger and batch > table.compacted
                and not (acknowledged | selectattr("first", "le", batch)
                | selectattr("last", "ge", batch) | list)
                and (ledger_rows is not none and ledger_rows != raw_rows
                    or not counts.entries and (batch < table.head or batch not in committed)
                    or batch in committed and committed[batch] != raw_rows) -%}
                {{ exceptions.raise_compiler_error(
                    owner ~ ": batch " ~ batch ~ " of " ~ table.name ~ " is not shown, because raw "
                    ~ "table, ledger and commit disagree about its rows: " ~ raw_rows ~ " in the "
                    ~ "raw table, " ~ (ledger_rows if counts.entries else "no entry") ~ " in the "
                    ~ "ledger, " ~ committed.get(batch, "unknown") ~ " in its commit. The test "
                    ~ "batches_complete shows all such batches; docs/dbt/tests.md says what to do."
                ) }}
            {%- endif -%}
        {%- endfor -%}
        {%- do table.update({"delivered": new | sum(attribute="1.raw_rows")}) -%}
    {%- endfor -%}
    {%- if not spec.is_plain -%}
        {%- do strandline._check_whole_select(spec, owner) -%}
    {%- endif -%}
{%- endmacro %}


{% macro _check_whole_select(spec, owner) -%}
    {%- set counts_sql -%}
        select
            count(*),
            count(distinct _cq_batch, _cq_seq{{ ", _cq_table" if spec.union }})
        from (
            {{ spec.sql }}
        ) as versions
        where {{ strandline._batches(spec.tables, above="low", up_to="head") }}
    {%- endset -%}
    {%- set returned = run_query(counts_sql).rows[0] -%}
    {%- set delivered = spec.tables | sum(attribute="delivered") -%}
    {%- if returned[0] | int > returned[1] | int -%}
        {{ exceptions.raise_compiler_error(
            owner ~ ": its SELECT returns " ~ returned[0] ~ " rows for " ~ returned[1]
            ~ " versions: a join matches a row several times, or a union reads a table twice. "
            ~ "Build the snapshot from the raw table alone, and join in a model that reads " ~ this
            ~ "."
        ) }}
    {%- elif returned[0] | int != delivered -%}
        {%- do strandline._object(spec.strict,
            owner ~ ": its SELECT returns " ~ returned[0] ~ " of " ~ delivered ~ " new versions. A "
            ~ "key whose newest version is excluded keeps showing an older one, and deleted rows, "
            ~ "which contain only their key, stay. Put the condition into row_filter, which "
            ~ "applies to the newest version."
        ) -%}
    {%- endif -%}
{%- endmacro %}
