"""A graph of LangGraph (`pip install langgraph langchain-openai`)."""

from __future__ import annotations

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from openai import AsyncOpenAI
from sums import INSTRUCTIONS, add, reward

from agentrl.types import Task

TOOLS = [tool(add)]


async def agent(task: Task, client: AsyncOpenAI, *, steps: int = 12) -> float:
    # It would make clients of its own; it only asks these resources for completions.
    model = ChatOpenAI(
        model="policy", client=object(), async_client=client.chat.completions, api_key="unused"
    ).bind_tools(TOOLS)

    async def ask(state: MessagesState) -> MessagesState:
        return {"messages": [await model.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("ask", ask)
    graph.add_node("tools", ToolNode(TOOLS))
    graph.set_entry_point("ask")
    graph.add_conditional_edges("ask", tools_condition)
    graph.add_edge("tools", "ask")
    messages = [("system", INSTRUCTIONS), ("user", str(task.prompt))]
    end = await graph.compile().ainvoke({"messages": messages}, {"recursion_limit": steps})
    return reward(end["messages"][-1].content, task)
