{% macro prune_state(keep=10, schema=none, alone=false, dry_run=false) -%}
    {{- return(adapter.dispatch("prune_state", "strandline")(keep, schema, alone, dry_run)) -}}
{%- endmacro %}


{% macro default__prune_state(keep, schema, alone, dry_run) -%}
    {%- if keep | int < 1 -%}
        {{ exceptions.raise_compiler_error("prune_state: keep is " ~ keep ~ ". Keep 1 version of each cursor at least.") }}
    {%- endif -%}
    {%- set state = strandline.state_relation(schema or strandline.raw_schema()) -%}
    {%- if not strandline.exists(state) -%}
        {{ exceptions.raise_compiler_error(
            "prune_state: there is no table " ~ state ~ ". Cursors that the loader keeps elsewhere are pruned by "
            ~ "`loader state prune`; another schema is named by `schema`."
        ) }}
    {%- endif -%}
    {%- set pruned_sql -%}
        select
            key,
            version
        from (
            select
                key,
                version,
                dense_rank() over (partition by key order by version desc) as age
            from (
                select
                    key,
                    coalesce(version, 0) as version
                from {{ state }} as state
            ) as versions
        ) as aged
        where age > {{ keep | int }}
    {%- endset -%}
    {%- set rows = strandline.count_rows(pruned_sql) -%}
    {%- if dry_run -%}
        {{ log("prune_state: " ~ "{:,}".format(rows) ~ " versions would go", info=true) }}
        {{ return(rows) }}
    {%- endif -%}
    {%- do strandline.check_alone(alone, "prune_state") -%}
    {%- if rows > 0 -%}
        {%- do strandline.run_statement("delete from " ~ state ~ " where (key, coalesce(version, 0)) in (\n" ~ pruned_sql ~ "\n)") -%}
    {%- endif -%}
    {{ log("prune_state: " ~ "{:,}".format(rows) ~ " versions went", info=true) }}
    {{ return(rows) }}
{%- endmacro %}
