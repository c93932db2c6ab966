{% macro expire_snapshots(relation, days=5, alone=false, dry_run=false) -%}
    {{- return(adapter.dispatch("expire_snapshots", "strandline")(relation, days, alone, dry_run)) -}}
{%- endmacro %}


{% macro default__expire_snapshots(relation, days, alone, dry_run) -%}
    {%- set owner = "expire_snapshots(" ~ relation ~ ")" -%}
    {%- set table = strandline.maintained_table(relation, owner) -%}
    {%- if dry_run -%}
        {{ log(owner ~ ": " ~ strandline.expirable_snapshots(table, days) | length ~ " snapshots would go", info=true) }}
        {{ return(none) }}
    {%- endif -%}
    {%- do strandline.check_alone(alone, owner) -%}
    {%- set before = strandline.footprint(table) -%}
    {%- if strandline.is_raw(strandline.full_name(table)) -%}
        {%- do strandline.settle_removed(table) -%}
    {%- endif -%}
    {%- do strandline.expire(table, days) -%}
    {{ return(strandline.tell_freed(owner, before, strandline.footprint(table))) }}
{%- endmacro %}


{% macro expire(relation, days) -%}
    {%- if strandline.is_raw(strandline.full_name(relation)) -%}
        {%- do strandline.keep_newest_batch(relation) -%}
    {%- endif -%}
    {%- for ids in strandline.expirable_snapshots(relation, days) | batch(500) -%}
        {#- None by age: only those that are named. -#}
        {%- set catalog = run_query("select current_catalog()").columns[0].values()[0] -%}
        {%- do run_query(
            "call " ~ strandline.quoted(catalog) ~ ".system.expire_snapshots(table => "
            ~ strandline.text_literal(strandline.full_name(relation))
            ~ ", older_than => timestamp '1970-01-02 00:00:00', snapshot_ids => array(" ~ ids | join("L, ") ~ "L))"
        ) -%}
    {%- endfor -%}
{%- endmacro %}


{% macro expirable_snapshots(relation, days) -%}
    {#-
        The snapshots that may go, oldest first: not the current one, nor what has a name or leads to
        it, nor what is younger. A loader may be about to publish what is staged, or may be reading
        the state or the ledger: such snapshots stay for an hour at least. Python's twin is
        loader/maintenance/expiry.py.
    -#}
    {%- set name = strandline.full_name(relation) -%}
    {%- set shared = [strandline.state_relation("").identifier, strandline.syncs_relation("").identifier] -%}
    {%- set least = "1" if relation.identifier in shared else "if(published, 0, 1)" -%}
    {%- set snapshots_sql -%}
        select
            cast(snapshot_id as string),
            cast(parent_id as string),
            unix_millis(committed_at)
                < unix_millis(current_timestamp()) - greatest({{ days | int }} * 86400000, {{ least }} * 3600000)
        from (
            select
                snapshots.*,
                history.snapshot_id is not null as published
            from {{ name }}.snapshots as snapshots
            left join (select distinct snapshot_id from {{ name }}.history where is_current_ancestor) as history
                on snapshots.snapshot_id = history.snapshot_id
        ) as aged
        order by committed_at
    {%- endset -%}
    {%- set parents = {} -%}
    {%- set old = [] -%}
    {%- for row in run_query(snapshots_sql) -%}
        {%- do parents.update({row[0]: row[1]}) -%}
        {%- if row[2] -%}
            {%- do old.append(row[0]) -%}
        {%- endif -%}
    {%- endfor -%}
    {%- set kept = [] -%}
    {%- for row in run_query("select name, cast(snapshot_id as string) from " ~ name ~ ".refs") -%}
        {%- do kept.append(row[1]) -%}
        {%- if row[0] != "main" -%}
            {%- set line = namespace(at=parents.get(row[1])) -%}
            {%- for _ in parents if line.at in parents -%}
                {%- do kept.append(line.at) -%}
                {%- set line.at = parents[line.at] -%}
            {%- endfor -%}
        {%- endif -%}
    {%- endfor -%}
    {{ return(old | reject("in", kept) | list) }}
{%- endmacro %}


{% macro keep_newest_batch(relation) -%}
    {#-
        Keeps what the newest batch's commit says, as that commit is about to expire: the loader
        recovers state and ledger from it. Of a shared table, what the newest commit of each source
        says. Python's twin is loader/lake/commits.py, keep_newest.
    -#}
    {%- set name = strandline.full_name(relation) -%}
    {%- do strandline.keep_newest_of(name, "strandline.newest") -%}
    {%- for source in strandline.sharers(name) -%}
        {%- do strandline.keep_newest_of(name, "strandline.newest." ~ source.encode("utf-8").hex(), source) -%}
    {%- endfor -%}
{%- endmacro %}


{% macro keep_newest_of(name, property, source=none) -%}
    {%- set newest_sql -%}
        select
            coalesce(published.summary['strandline.batch'], published.summary['published-wap-id']) as batch,
            cast(published.snapshot_id as string) as snapshot_id,
            {{ strandline.commit_says("state") }} as state,
            {{ strandline.commit_says("sync") }} as sync,
            published.summary['added-records'] as rows,
            date_format(published.committed_at, "yyyy-MM-dd'T'HH:mm:ss.SSSSSSxxx") as at
        {{ strandline.commit_chain(name) | indent(8) }}
        where coalesce(published.summary['strandline.batch'], published.summary['published-wap-id']) is not null
        {%- if source %}
            and get_json_object({{ strandline.commit_says("sync") }}, '$.source_name') = {{ strandline.text_literal(source) }}
        {%- endif %}
        order by cast(batch as bigint) desc
        limit 1
    {%- endset -%}
    {%- for row in run_query(newest_sql) if row[2] is not none -%}
        {%- set text = tojson({
            "at": row[5],
            "batch": row[0] | int,
            "rows": row[4] | int,
            "snapshot_id": row[1] | int,
            "state": row[2],
            "sync": fromjson(row[3]) if row[3] else none,
        }, sort_keys=true) -%}
        {%- if strandline.table_properties(name).get(property) != text -%}
            {%- do strandline.run_statement(
                "alter table " ~ name ~ " set tblproperties ('" ~ property ~ "' = "
                ~ strandline.text_literal(strandline.veiled(text)) ~ ")"
            ) -%}
        {%- endif -%}
    {%- endfor -%}
{%- endmacro %}
