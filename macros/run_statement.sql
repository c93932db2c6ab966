{% macro run_statement(sql) -%}
    {#- For statements that return no rows: over Thrift, run_query() would have nothing to fetch. -#}
    {%- call statement("strandline_statement", fetch_result=false, auto_begin=false) -%}
        {{ sql }}
    {%- endcall -%}
{%- endmacro %}
