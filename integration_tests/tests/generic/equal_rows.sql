{% test equal_rows(model, expected) %}
    {#- The rows that only one of the two tables has, of the columns of `expected`. -#}
    {%- set columns = adapter.get_columns_in_relation(expected) | map(attribute="name") | join(", ") if execute else "1" %}
    with actual as (
        select {{ columns }}, count(*) as copies
        from {{ model }}
        group by {{ columns }}
    ),

    expected as (
        select {{ columns }}, count(*) as copies
        from {{ expected }}
        group by {{ columns }}
    ),

    missing as (
        select * from expected
        except
        select * from actual
    ),

    unexpected as (
        select * from actual
        except
        select * from expected
    )

    select 'missing' as problem, missing.* from missing
    union all
    select 'unexpected' as problem, unexpected.* from unexpected
{% endtest %}
