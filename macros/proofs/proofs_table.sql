{% macro proofs_relation() -%}
    {#- The table of proofs, in the target's own schema: each target proves what it builds. -#}
    {%- set node = graph.sources["source.strandline.strandline_proofs._cq_proofs"] -%}
    {{ return(strandline.exactly(node.schema, node.identifier)) }}
{%- endmacro %}


{% macro proofs_setting(name, default) -%}
    {#-
        A setting of the proofs: from --vars or the project's variables, else from the package's, as rendered in
        its own source. Without that source, which a project may disable, nothing is recorded.
    -#}
    {%- set node = graph.sources.get("source.strandline.strandline_proofs._cq_proofs") -%}
    {%- if not node -%}
        {{ return(false) }}
    {%- endif -%}
    {%- set said = ((node.config.get("meta") or {}).get("strandline") or {}).get(name, default) -%}
    {%- set said = var({"record": "strandline__record_proofs", "prove_all": "strandline__prove_all",
        "within": "strandline__proved_again_within"}[name], said) -%}
    {{ return(said if default is not boolean else said | string | lower == "true") }}
{%- endmacro %}


{% macro proved_again_within() -%}
    {#- Within how many builds every batch is proved again; none if the package decides. -#}
    {%- set within = strandline.proofs_setting("within", "auto") | string -%}
    {%- if within == "auto" -%}
        {{ return(none) }}
    {%- endif -%}
    {%- if not modules.re.match("^[1-9][0-9]*$", within) -%}
        {{ exceptions.raise_compiler_error(
            "The variable strandline__proved_again_within is '" ~ within ~ "'. Give a number of builds, 1 or more: within "
            ~ "that many builds, tests prove again what they have proved before. Or leave it at auto."
        ) }}
    {%- endif -%}
    {{ return(within | int) }}
{%- endmacro %}


{% macro proved(tested) -%}
    {#- What the current test has proved of a table so far: {raw table: the newest record}. -#}
    {%- set known = strandline.remembered("proofs") -%}
    {%- if "records" not in known -%}
        {%- do known.update({"records": strandline.newest_proofs()}) -%}
    {%- endif -%}
    {{ return(known.records.get(model.unique_id ~ " " ~ strandline.name_of(tested), {})) }}
{%- endmacro %}


{% macro newest_proofs() -%}
    {#- The newest records: {a test's id and a table's name: {raw table: record}}. -#}
    {%- set proofs = strandline.proofs_relation() -%}
    {%- set records = {} -%}
    {%- if strandline.exists(proofs) -%}
        {%- set newest_sql -%}
            select
                proof || ' ' || table_name,
                raw_table,
                to_json(max_by(struct(
                    raw_id,
                    cast(raw_snapshot_id as string) as raw_snapshot_id,
                    cast(table_snapshot_id as string) as table_snapshot_id,
                    configuration,
                    batch,
                    again_step,
                    again_batch
                ), proved_at))
            from {{ proofs }} as proofs
            group by 1, 2
        {%- endset -%}
        {%- for row in run_query(newest_sql) -%}
            {%- do records.setdefault(row[0], {}).update({row[1]: fromjson(row[2])}) -%}
        {%- endfor -%}
    {%- endif -%}
    {{ return(records) }}
{%- endmacro %}


{% macro make_proofs_table(proofs) -%}
    {#- Keeps few old metadata files: each build adds one. -#}
    {%- do strandline.run_statement("create schema if not exists " ~ strandline.quoted_path(proofs.schema)) -%}
    {%- do strandline.run_statement(
        "create table if not exists " ~ proofs ~ " (proof string, test string, table_name string, "
        ~ "table_snapshot_id bigint, configuration string, raw_table string, raw_id string, raw_snapshot_id bigint, "
        ~ "batch bigint, again_step int, again_batch bigint, reason string, invocation_id string, proved_at timestamp) "
        ~ "using iceberg tblproperties ('write.metadata.delete-after-commit.enabled' = 'true', "
        ~ "'write.metadata.previous-versions-max' = '10', 'commit.manifest.min-count-to-merge' = '8')"
    ) -%}
{%- endmacro %}


{% macro keep_proofs_small(proofs) -%}
    {#-
        Each build appends a file. Once there are a few dozen, only the newest record of each proof is kept, for
        half a year: then its test no longer exists. Iceberg snapshots stay for an hour, as other builds may be
        reading them. Whatever two builds at once do to each other here, a record can only be lost, and what it
        said is proved once more.
    -#}
    {%- if run_query("select count(*) from " ~ proofs ~ ".files as files").columns[0].values()[0] | int <= 32 -%}
        {{ return(none) }}
    {%- endif -%}
    {%- set newest_sql -%}
        insert overwrite {{ proofs }}
        select /*+ coalesce(1) */ newest.*
        from (
            select max_by(struct(*), proved_at) as newest
            from {{ proofs }} as proofs
            group by proof, table_name, raw_table
        ) as kept
        where newest.proved_at > current_timestamp() - interval 180 days
    {%- endset -%}
    {%- do strandline.run_statement(newest_sql) -%}
    {#- A procedure takes a literal and reads it in the session's zone, so this is written in that zone, too. -#}
    {%- set until = run_query(
        "select cast(current_timestamp() - interval 1 hour as string)"
    ).columns[0].values()[0] -%}
    {%- do strandline.iceberg_call("expire_snapshots", proofs, "older_than => timestamp '" ~ until ~ "'") -%}
{%- endmacro %}
